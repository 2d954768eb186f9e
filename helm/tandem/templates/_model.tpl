{{- define "tandem.modelFolder" -}}
{{- printf "%s/%s" (trimSuffix "/" .Values.model.mountPath) .Values.model.folder -}}
{{- end -}}

{{- define "tandem.modelVolume" -}}
{{- $model := .Values.model -}}
{{- if eq $model.source "claim" }}
- name: model
  persistentVolumeClaim: {claimName: {{ required "model.claim.name: the claim that holds the weights" $model.claim.name }}, readOnly: {{ $model.claim.readOnly }}}
{{- else if ne $model.source "image" }}
- name: model
  {{- if $model.volume.claimName }}
  persistentVolumeClaim: {claimName: {{ $model.volume.claimName }}}
  {{- else }}
  emptyDir: {sizeLimit: {{ $model.volume.size }}}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "tandem.modelMount" -}}
{{- if ne .Values.model.source "image" }}
- {name: model, mountPath: {{ .Values.model.mountPath }}{{ if eq .Values.model.source "claim" }}, readOnly: {{ .Values.model.claim.readOnly }}{{ end }}}
{{- end }}
{{- end -}}

{{/* Fetches the weights, except files that are there already. */}}
{{- define "tandem.modelFetch" -}}
{{- $model := .Values.model -}}
{{- $store := $model.objectStore -}}
{{- if has $model.source (list "hub" "objectStore") }}
- name: fetch-model
  {{- if eq $model.source "hub" }}
  image: {{ include "tandem.image" . }}
  command: [hf, download, {{ required "model.hub.name: owner/model" $model.hub.name | quote }}]
  args:
    - --revision
    - {{ required "model.hub.revision: a commit, so that all pods serve the same weights" $model.hub.revision | quote }}
    - --local-dir
    - {{ include "tandem.modelFolder" . }}
  {{- else }}
  {{- $_ := required "model.objectStore.image.repository" $store.image.repository }}
  {{- $_ := required "model.objectStore.image.tag" $store.image.tag }}
  image: {{ include "tandem.imageName" $store.image }}
  command: {{ toJson $store.command }}
  args: {{ toJson $store.args }}
  {{- with $store.secretName }}
  envFrom: [{secretRef: {name: {{ . }}}}]
  {{- end }}
  {{- end }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  env:
    - {name: TANDEM_MODEL_FOLDER, value: {{ include "tandem.modelFolder" . }}}
    - {name: HOME, value: /tmp}
    {{- if and (eq $model.source "hub") $model.hub.tokenSecret.name }}
    - name: HF_TOKEN
      valueFrom: {secretKeyRef: {{ toJson $model.hub.tokenSecret }}}
    {{- end }}
  resources: {{- toYaml $model.resources | nindent 4 }}
  securityContext: {{- include "tandem.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
    {{- include "tandem.modelMount" . | trim | nindent 4 }}
{{- end }}
{{- end -}}
