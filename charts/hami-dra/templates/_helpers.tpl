{{/* Labels of everything that is made here. `part-of` is how `hami-dra uninstall` knows what is ours: Helm keeps managed-by to itself. */}}
{{- define "hami-dra.labels" -}}
{{- with .Values.commonLabels }}{{ toYaml . }}
{{ end -}}
app.kubernetes.io/name: hami-dra
app.kubernetes.io/part-of: hami-dra
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* What a Deployment selects its pods by. It can never be changed, so nothing stands here that an upgrade changes.
     In: the component: controller, webhook, fleet. */}}
{{- define "hami-dra.selector" -}}
app.kubernetes.io/name: hami-dra
app.kubernetes.io/component: {{ . }}
{{- end }}

{{/* Labels and annotations of an object. In: (dict "root" $ "component" NAME "labels" {...} "annotations" {...}), all but root
     optional. */}}
{{- define "hami-dra.metadata" -}}
labels: {{- include "hami-dra.labels" .root | nindent 2 }}
  {{- with .component }}
  app.kubernetes.io/component: {{ . }}
  {{- end }}
  {{- with .labels }}{{ toYaml . | nindent 2 }}{{ end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "hami-dra.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* The objects of shipped files, as a JSON list: {"items": [...]}. In: (dict "root" $ "glob" "manifests/*.yaml"). Installed elsewhere
     than the files say, they name that namespace wherever they name one. */}}
{{- define "hami-dra.shipped" -}}
{{- $items := list }}
{{- $root := .root }}
{{- range $path, $_ := $root.Files.Glob .glob }}
{{- $text := $root.Files.Get $path | replace "hami-dra-system" $root.Release.Namespace }}
{{- range regexSplit "(?m)^---$" $text -1 }}
{{- $object := fromYaml . }}
{{- if hasKey $object "Error" }}{{ fail (printf "%s: %s" $path $object.Error) }}{{ end }}
{{- if $object }}
{{- $component := regexFind "^hami-dra-(controller|webhook|driver|uninstall)" $object.metadata.name | trimPrefix "hami-dra-" }}
{{- $annotations := dig "metadata" "annotations" (dict) $object }}
{{- $made := include "hami-dra.metadata" (dict "root" $root "component" $component "annotations" $annotations) | fromYaml }}
{{- $_ := set $object.metadata "labels" (mergeOverwrite (dict) (dig "metadata" "labels" (dict) $object) $made.labels) }}
{{- if $made.annotations }}
{{- $_ := set $object.metadata "annotations" $made.annotations }}
{{- end }}
{{- if eq $object.kind "ServiceAccount" }}
{{- $_ := mergeOverwrite $object (include "hami-dra.serviceAccount" $root | fromYaml) }}
{{- end }}
{{- $items = append $items $object }}
{{- end }}
{{- end }}
{{- end }}
{{- dict "items" $items | toJson }}
{{- end }}

{{/* Options that all services have. */}}
{{- define "hami-dra.serviceArgs" -}}
- --log-format={{ .Values.log.format }}
- --verbosity={{ int .Values.log.verbosity }}
{{- end }}

{{/* What every account gets. In: the root. */}}
{{- define "hami-dra.serviceAccount" -}}
{{- with .Values.serviceAccount.annotations }}
metadata:
  annotations: {{- toYaml . | nindent 4 }}
{{- end }}
{{- with .Values.serviceAccount.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Of a pod that needs nothing of its node. */}}
{{- define "hami-dra.podSecurity" -}}
{{- toYaml (.Values.openshift.enabled | ternary (omit .Values.podSecurityContext "runAsUser" "runAsGroup" "fsGroup") .Values.podSecurityContext) }}
{{- end }}

{{- define "hami-dra.containerSecurity" -}}
{{- toYaml .Values.containerSecurityContext }}
{{- end }}

{{/* How a Deployment is replaced. On the node's network a new replica finds no node with a free port while all old ones run. In: its
     values. */}}
{{- define "hami-dra.strategy" -}}
{{- $strategy := deepCopy .strategy }}
{{- if and .hostNetwork (has (toString (dig "rollingUpdate" "maxUnavailable" "" $strategy)) (list "0" "0%")) }}
{{- $_ := set $strategy.rollingUpdate "maxUnavailable" 1 }}
{{- end }}
{{- with $strategy }}
strategy: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What is common to all drivers, and a vendor's own: maps are merged, and lists are put together. In: (dict "common" {...} "own" {...}). */}}
{{- define "hami-dra.driverValues" -}}
{{- $values := mergeOverwrite (deepCopy .common) (deepCopy .own) }}
{{- $lists := dict }}
{{- range $key, $list := .common }}
{{- if and (kindIs "slice" $list) (hasKey $.own $key) }}
{{- $own := index $.own $key | default list }}
{{- if eq $key "hostPaths" }}
{{- $paths := list }}
{{- range $list }}{{ $paths = append $paths .path }}{{ end }}
{{- range $each := $own }}
{{- if not (has $each.path $paths) }}{{ $list = append $list $each }}{{ end }}
{{- end }}
{{- $_ := set $lists $key $list }}
{{- else }}
{{- $_ := set $lists $key (concat $list $own | uniq) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $key, $list := $lists }}{{ $_ := set $values $key $list }}{{ end }}
{{- toYaml $values }}
{{- end }}

{{/* A number as programs read it: of a values file 1000000 is a float, which Helm prints as 1e+06. */}}
{{- define "hami-dra.plain" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{/* What no schema can say of a release: its namespace, and that it is the only one. In: the root. */}}
{{- define "hami-dra.checkRelease" -}}
{{- $namespace := .Release.Namespace }}
{{- if eq $namespace "hami-dra-probe" }}
{{- fail "the namespace hami-dra-probe is the fence's own: install into another one, such as hami-dra-system" }}
{{- end }}
{{- if and .Values.namespace.create (has $namespace (list "default" "kube-system" "kube-public" "kube-node-lease")) }}
{{- fail (printf "namespace.create would make all of %s privileged: install into a namespace of its own (--namespace hami-dra-system)" $namespace) }}
{{- end }}
{{- range (lookup "rbac.authorization.k8s.io/v1" "ClusterRoleBinding" "" "hami-dra-controller" | default dict).subjects }}
{{- if ne .namespace $namespace }}
{{- fail (printf "hami-dra is installed in namespace %s already, and a cluster has one: upgrade that release (--namespace %s), or uninstall it first" .namespace .namespace) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Replicas on different nodes and zones, where there are several. In: (dict "keys" [...] "component" NAME). */}}
{{- define "hami-dra.spread" -}}
{{- range .keys }}
- maxSkew: 1
  topologyKey: {{ . }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- include "hami-dra.selector" $.component | nindent 6 }}
{{- end }}
{{- end }}

{{/* Where the pods of a Deployment may run. In: its values. */}}
{{- define "hami-dra.placement" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "hami-dra.podDisruptionBudget" -}}
{{- if and .values.podDisruptionBudget.enabled (gt (int .values.replicas) 1) }}
{{- $stay := .values.podDisruptionBudget.minAvailable }}
{{- $replicas := int .values.replicas }}
{{- $kept := kindIs "string" $stay | ternary (div (add (mul (toString $stay | trimSuffix "%" | int) $replicas) 99) 100) (int $stay) }}
{{- if ge (int $kept) $replicas }}
{{- fail (printf "%s.podDisruptionBudget.minAvailable=%v with %d replicas stops every drain of a node: at most %d replicas may have to stay" .component $stay $replicas (sub $replicas 1)) }}
{{- end }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  {{- include "hami-dra.metadata" (dict "root" .root "component" .component) | nindent 2 }}
spec:
  minAvailable: {{ include "hami-dra.plain" $stay }}
  # an unhealthy replica must not block a drain
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "hami-dra.selector" .component | nindent 6 }}
{{- end }}
{{- end }}

{{/* Where the webhook's certificates come from. One that runs outside the cluster is not Helm's to mount an authority into. */}}
{{- define "hami-dra.certificateFrom" -}}
{{- $webhook := .Values.webhook -}}
{{- if and (eq $webhook.certificate.from "helm") $webhook.url -}}self{{- else -}}{{ $webhook.certificate.from }}{{- end -}}
{{- end }}

{{/* The webhook's authority as JSON: certificate, key, made (Unix seconds), bundle; all base64 but `made`. Made once, and kept by
     all upgrades until it is eight of its ten years old; then the old one stays in the bundle, until replicas have the new one. */}}
{{- define "hami-dra.authority" -}}
{{- $webhook := .Values.webhook -}}
{{- if not (hasKey $webhook "authority") }}
{{- $now := now | unixEpoch | int64 }}
{{- $stored := lookup "v1" "Secret" .Release.Namespace "hami-dra-webhook-authority" | default dict }}
{{- $data := $stored.data | default dict }}
{{- $made := dig "metadata" "annotations" "hami.io/authority-made" "0" $stored | int64 }}
{{- $authority := dict "certificate" (index $data "ca.crt" | default "") "key" (index $data "ca.key" | default "") "made" $made }}
{{- $bundle := $authority.certificate }}
{{- if or (eq $bundle "") (gt (sub $now $made) 252288000) }}
{{- $new := genCAWithKey "hami-dra webhook authority" 3650 (genPrivateKey "ecdsa") }}
{{- $bundle = printf "%s%s" $new.Cert ($bundle | b64dec) | b64enc }}
{{- $authority = dict "certificate" ($new.Cert | b64enc) "key" ($new.Key | b64enc) "made" $now }}
{{- end }}
{{- $_ := set $webhook "authority" (set $authority "bundle" $bundle) }}
{{- end }}
{{- toJson $webhook.authority }}
{{- end }}

{{- /* Driver → its profile, of controller.manageProfiles: a shipped one by the driver's name, or a profile as it stands. */}}
{{- define "hami-dra.driverProfiles" -}}
{{- $found := dict }}
{{- range .Values.controller.manageProfiles }}
{{- $profile := . }}
{{- if kindIs "string" . }}
{{- $text := $.Files.Get (printf "driverprofiles/%s.yaml" .) }}
{{- if not $text }}{{ fail (printf "controller.manageProfiles: no profile of %s ships with the chart; write the profile itself (docs/driver-profiles.md)" .) }}{{ end }}
{{- $profile = fromYaml $text }}
{{- end }}
{{- if hasKey $found $profile.driver }}{{ fail (printf "controller.manageProfiles: %s is there twice; remove one of them" $profile.driver) }}{{ end }}
{{- $_ := set $found $profile.driver $profile }}
{{- end }}
{{- toJson $found }}
{{- end }}
