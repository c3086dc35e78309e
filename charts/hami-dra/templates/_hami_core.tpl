{{- /* Init containers of the driver that install HAMi-core on its node. The image that has it only copies it into an empty folder; ours
checks it and writes it to the node. In: root, values (of the driver), hostPaths. */}}
{{- define "hami-dra.hamiCore" }}
{{- $root := .root }}
{{- $values := .values }}
{{- $hostPaths := .hostPaths }}
{{- $core := $values.hamiCore }}
{{- if $core.image }}
- name: hami-core
  image: {{ $core.image }}
  imagePullPolicy: {{ $core.imagePullPolicy }}
  command: [cp, -r, {{ printf "%s/." (trimSuffix "/" $core.imageFolder) | quote }}, /staging]
  env:
  # the image may ask NVIDIA's runtime for all cards
  - name: NVIDIA_VISIBLE_DEVICES
    value: void
  resources:
    requests:
      cpu: 10m
      memory: 32Mi
    limits:
      memory: 128Mi
  securityContext:
    runAsNonRoot: true
    runAsUser: 65534
    runAsGroup: 65534
    allowPrivilegeEscalation: false
    capabilities:
      drop: [ALL]
    readOnlyRootFilesystem: true
    seccompProfile:
      type: RuntimeDefault
  volumeMounts:
  - name: hami-core
    mountPath: /staging
{{- end }}
- name: install-hami-core
  image: {{ include "hami-dra.image" $root }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  args:
  - install-library
  - --from=/staging
  {{- range $values.extraArgs }}
  {{- if or (hasPrefix "--library-folder=" .) (hasPrefix "--library-version=" .) }}
  - {{ . }}
  {{- end }}
  {{- end }}
  env:
  - name: NVIDIA_VISIBLE_DEVICES
    value: void
  resources: {{- toYaml $values.resources | nindent 10 }}
  securityContext:
    runAsUser: 0
    runAsGroup: 0
    {{- if $values.privileged }}
    # as the driver: where SELinux confines containers, others write to no folder of the node
    privileged: true
    {{- else }}
    allowPrivilegeEscalation: false
    capabilities:
      drop: [ALL]
      add: [DAC_OVERRIDE]
    {{- end }}
    readOnlyRootFilesystem: true
  volumeMounts:
  - name: hami-core
    mountPath: /staging
    readOnly: true
  {{- range $index, $each := $hostPaths }}
  - name: host-{{ $index }}
    mountPath: {{ $each.mountPath | default $each.path }}
    readOnly: {{ $each.readOnly | default false }}
  {{- end }}
{{- end }}
