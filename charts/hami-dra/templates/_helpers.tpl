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
- --verbosity={{ .Values.log.verbosity }}
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

{{/* How a Deployment is replaced, and how long its pods may take to end. In: its values. */}}
{{- define "hami-dra.strategy" -}}
{{- with .strategy }}
strategy: {{- toYaml . | nindent 2 }}
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
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  {{- include "hami-dra.metadata" (dict "root" .root "component" .component) | nindent 2 }}
spec:
  minAvailable: {{ .values.podDisruptionBudget.minAvailable }}
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
