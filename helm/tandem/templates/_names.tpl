{{- define "tandem.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "tandem.selector" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: tandem
{{- end -}}

{{- define "tandem.labels" -}}
{{ include "tandem.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tandem.image" -}}
{{- $cuda := false -}}
{{- range $name, $_ := .Values.pools -}}
{{- $pool := include "tandem.pool" (dict "root" $ "name" $name) | fromYaml -}}
{{- if gt (int $pool.gpus) 0 -}}{{- $cuda = true -}}{{- end -}}
{{- end -}}
{{- $tag := printf "%s-%s" .Chart.AppVersion (ternary "cuda" "cpu" $cuda) -}}
{{- include "tandem.imageName" (merge (dict "tag" (default $tag .Values.image.tag)) .Values.image) -}}
{{- end -}}

{{/* An image by tag, and by digest where there is one: repository, tag, digest. */}}
{{- define "tandem.imageName" -}}
{{- .repository }}:{{ .tag }}{{ with .digest }}@{{ . }}{{ end -}}
{{- end -}}

{{/* A pool's values, over the defaults of all pools. */}}
{{- define "tandem.pool" -}}
{{- include "tandem.over" (dict "defaults" .root.Values.poolDefaults "own" (get .root.Values.pools .name | default dict)) -}}
{{- end -}}

{{/* Sprig's merge would keep a default where the own value is 0, false or empty. */}}
{{- define "tandem.over" -}}
{{- $merged := deepCopy .defaults -}}
{{- range $key, $value := .own -}}{{- $_ := set $merged $key $value -}}{{- end -}}
{{- toYaml $merged -}}
{{- end -}}

{{/* A CPU quantity in whole cores, at least one. */}}
{{- define "tandem.cores" -}}
{{- $text := toString . -}}
{{- if hasSuffix "m" $text -}}
{{- max 1 (div (int (trimSuffix "m" $text)) 1000) -}}
{{- else -}}
{{- max 1 (int (float64 $text)) -}}
{{- end -}}
{{- end -}}
