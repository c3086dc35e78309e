{{/* Labels of everything that is made here. `part-of` is how `hami-dra uninstall` knows what is ours: Helm keeps managed-by to itself. */}}
{{- define "hami-dra.labels" -}}
app.kubernetes.io/part-of: hami-dra
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
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
{{- $labels := mergeOverwrite (dict) (dig "metadata" "labels" (dict) $object) (include "hami-dra.labels" $root | fromYaml) }}
{{- $_ := set $object.metadata "labels" $labels }}
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

{{/* Of a pod that needs nothing of its node. */}}
{{- define "hami-dra.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "hami-dra.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Replicas on different nodes and zones, where there are several. In: (dict "keys" [...] "name" NAME). */}}
{{- define "hami-dra.spread" -}}
{{- range .keys }}
- maxSkew: 1
  topologyKey: {{ . }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {app.kubernetes.io/name: {{ $.name }}}
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
  labels: {{- include "hami-dra.labels" .root | nindent 4 }}
spec:
  minAvailable: {{ .values.podDisruptionBudget.minAvailable }}
  # a replica that is not well anyway does not stop a drain
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {app.kubernetes.io/name: {{ .name }}}
{{- end }}
{{- end }}
