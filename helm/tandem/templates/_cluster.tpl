{{- define "tandem.autoscaling" -}}
{{- $on := false -}}
{{- range $name := list "router" "prefill" "decode" -}}
{{- $bounds := include "tandem.podBounds" (dict "root" $ "name" $name) | fromYaml -}}
{{- if $bounds.scales -}}{{- $on = true -}}{{- end -}}
{{- end -}}
{{- $on -}}
{{- end -}}

{{/* The groups that may have pods. Without prefill replicas there is one pool. */}}
{{- define "tandem.groups" -}}
{{- $groups := list -}}
{{- range $name := list "router" "prefill" "decode" -}}
{{- $pods := int (include "tandem.pods" (dict "root" $ "name" $name)) -}}
{{- $bounds := include "tandem.podBounds" (dict "root" $ "name" $name) | fromYaml -}}
{{- if or (gt $pods 0) $bounds.scales -}}
{{- $groups = append $groups $name -}}
{{- end -}}
{{- end -}}
{{- join " " $groups -}}
{{- end -}}

{{/* The application's YAML, its configuration for Serve, and the preStop hook. */}}
{{- define "tandem.configData" -}}
tandem.yaml: |2
  {{- include "tandem.applicationText" . | nindent 2 }}
serve.yaml: |
  {{- include "tandem.serveConfig" . | nindent 2 }}
drain.sh: |
  {{- .Files.Get "files/drain.sh" | nindent 2 }}
{{- end -}}

{{/* One worker group: root, name. Tandem sends no data through Ray's object store. */}}
{{- define "tandem.group" -}}
{{- $pool := include "tandem.pool" . | fromYaml -}}
{{- $pods := int (include "tandem.pods" .) -}}
{{- $bounds := include "tandem.podBounds" . | fromYaml -}}
{{- $ports := dict "agent" 52365 "metrics" 8080 -}}
{{- if eq .name "router" -}}
{{- $_ := set $ports "http" (int (include "tandem.httpPort" .root)) -}}
{{- $_ := set $ports "grpc" (int (include "tandem.grpcPort" .root)) -}}
{{- end -}}
groupName: {{ .name }}
replicas: {{ $pods }}
minReplicas: {{ int $bounds.min }}
maxReplicas: {{ int $bounds.max }}
rayStartParams:
  num-cpus: {{ include "tandem.cores" $pool.resources.limits.cpu | quote }}
  {{- if gt (int $pool.gpus) 0 }}
  num-gpus: {{ int $pool.gpus | quote }}
  {{- end }}
  metrics-export-port: "8080"
  object-store-memory: "134217728"
  resources: {{ printf "'{\"tandem_%s\": %d}'" .name (int $pool.replicasPerPod) | toJson }}
template:
  {{- include "tandem.pod" (dict "root" .root "component" .name "pool" $pool "ports" $ports) | nindent 2 }}
{{- end -}}

{{- define "tandem.clusterSpec" -}}
{{- $own := merge (dict "gpus" 0 "rdma" dict "runtimeClassName" "" "topologySpread" list "environment" dict) (deepCopy .Values.ray.head) -}}
{{- $head := include "tandem.over" (dict "defaults" .Values.poolDefaults "own" $own) | fromYaml -}}
{{- $ports := dict "gcs" 6379 "dashboard" 8265 "client" 10001 "metrics" 8080 "agent" 52365 "serve" 8000 -}}
rayVersion: {{ .Values.ray.version | quote }}
enableInTreeAutoscaling: {{ include "tandem.autoscaling" . }}
{{- if eq (include "tandem.autoscaling" .) "true" }}
autoscalerOptions:
  resources: {{- toYaml .Values.ray.head.autoscaler.resources | nindent 4 }}
  securityContext: {{- include "tandem.containerSecurity" . | nindent 4 }}
  volumeMounts: [{name: tmp, mountPath: /tmp}]
  env:
    - {name: HOME, value: /tmp}
    {{- with include "tandem.rayToken" . | trim }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end }}
authOptions: {mode: {{ .Values.ray.auth }}{{ if eq .Values.ray.auth "token" }}, secretName: {{ include "tandem.rayTokenSecret" . }}{{ end }}}
{{- if .Values.ray.faultTolerance.enabled }}
{{- if and .Values.ray.faultTolerance.namespace (eq .Values.mode "service") (eq .Values.ray.upgrade.type "NewCluster") }}
{{- fail "ray.faultTolerance.namespace: an upgrade makes a second cluster, which would take over the state of the first; leave it empty, or set ray.upgrade.type: None" }}
{{- end }}
{{- $redis := include "tandem.redisAddress" . | trimPrefix "redis://" | trimPrefix "rediss://" | splitList "/" | first }}
{{- $scheme := ternary "rediss://" "" (hasPrefix "rediss://" (include "tandem.redisAddress" .)) }}
gcsFaultToleranceOptions:
  redisAddress: {{ $scheme }}{{ ternary $redis (printf "%s:6379" $redis) (regexMatch ":[0-9]+$" $redis) }}
  {{- with include "tandem.redisPassword" . | fromJson }}
  redisPassword: {valueFrom: {secretKeyRef: {{ toJson . }}}}
  {{- end }}
  {{- with .Values.ray.faultTolerance.namespace }}
  externalStorageNamespace: {{ . }}
  {{- end }}
{{- end }}
headGroupSpec:
  serviceType: ClusterIP
  rayStartParams:
    num-cpus: "0"
    dashboard-host: 0.0.0.0
    metrics-export-port: "8080"
    object-store-memory: "134217728"
  template:
    {{- include "tandem.pod" (dict "root" . "component" "head" "pool" $head "ports" $ports) | nindent 4 }}
workerGroupSpecs:
  {{- range $name := include "tandem.groups" . | splitList " " }}
  - {{- include "tandem.group" (dict "root" $ "name" $name) | nindent 4 }}
  {{- end }}
{{- end -}}
