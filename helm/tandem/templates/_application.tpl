{{/* The user's configuration, as data. */}}
{{- define "tandem.application" -}}
{{- $data := .Values.application -}}
{{- if .Values.applicationFile -}}
{{- if .Values.application -}}{{- fail "application and applicationFile: give one of the two" -}}{{- end -}}
{{- $data = fromYaml .Values.applicationFile -}}
{{- with $data.Error -}}{{- fail (printf "applicationFile: %s" .) -}}{{- end -}}
{{- end -}}
{{- toYaml $data -}}
{{- end -}}

{{/* The configuration as text. Values have no order, but the first endpoint is the default. */}}
{{- define "tandem.applicationText" -}}
{{- $endpoints := .Values.application.endpoints | default dict -}}
{{- if .Values.applicationFile -}}{{- .Values.applicationFile -}}
{{- else if le (len $endpoints) 1 -}}{{- toYaml .Values.application -}}
{{- else -}}
{{- $first := required "defaultEndpoint: which of application.endpoints is it" .Values.defaultEndpoint -}}
{{- if not (hasKey $endpoints $first) -}}{{- fail (printf "defaultEndpoint: application.endpoints has no %s" $first) -}}{{- end -}}
endpoints:
  {{- range $name := prepend (without (keys $endpoints) $first | sortAlpha) $first }}
  {{ $name }}: {{- toYaml (get $endpoints $name) | nindent 4 }}
  {{- end }}
{{- with omit .Values.application "endpoints" }}
{{ toYaml . }}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "tandem.requestSeconds" -}}
{{- $application := include "tandem.application" . | fromYaml -}}
{{- (dig "router" "request_timeout_s" 600 $application) | float64 | ceil | int -}}
{{- end -}}

{{- define "tandem.drainSeconds" -}}
{{- if kindIs "invalid" .Values.drainSeconds -}}{{- include "tandem.requestSeconds" . -}}
{{- else -}}{{- int .Values.drainSeconds -}}{{- end -}}
{{- end -}}

{{- define "tandem.port" -}}
{{- $application := include "tandem.application" .root | fromYaml -}}
{{- int (dig "router" .key .default $application) -}}
{{- end -}}
{{- define "tandem.httpPort" -}}{{- include "tandem.port" (dict "root" . "key" "http_port" "default" 8000) -}}{{- end -}}
{{- define "tandem.grpcPort" -}}{{- include "tandem.port" (dict "root" . "key" "grpc_port" "default" 50051) -}}{{- end -}}

{{- define "tandem.messageBytes" -}}
{{- $application := include "tandem.application" . | fromYaml -}}
{{- int64 (dig "router" "max_message_bytes" 4194304 $application) -}}
{{- end -}}

{{- define "tandem.redisAddress" -}}
{{- if .Values.redis.url -}}{{- .Values.redis.url -}}
{{- else -}}{{- printf "%s://%s-redis:6379/0" (ternary "rediss" "redis" (eq (include "tandem.redisTls" .) "true")) (include "tandem.name" .) -}}{{- end -}}
{{- end -}}

{{/* Pods of a pool: given, or enough for application.<pool>.replicas. */}}
{{- define "tandem.pods" -}}
{{- $pool := include "tandem.pool" . | fromYaml -}}
{{- if not (kindIs "invalid" $pool.pods) -}}{{- int $pool.pods -}}
{{- else -}}
{{- $application := include "tandem.application" .root | fromYaml -}}
{{- $replicas := int (dig .name "replicas" 1 $application) -}}
{{- div (add $replicas (sub (int $pool.replicasPerPod) 1)) (int $pool.replicasPerPod) -}}
{{- end -}}
{{- end -}}

{{/* The least and the most pods of a pool: given, or from application.scaling, or fixed. */}}
{{- define "tandem.podBounds" -}}
{{- $pool := include "tandem.pool" . | fromYaml -}}
{{- $application := include "tandem.application" .root | fromYaml -}}
{{- $pods := int (include "tandem.pods" .) -}}
{{- $each := int $pool.replicasPerPod -}}
{{- $least := $pods -}}{{- $most := $pods -}}{{- $scales := false -}}
{{- with dig "scaling" .name nil $application -}}
{{- $scales = true -}}
{{- $least = div (add (int (dig "min" 1 .)) (sub $each 1)) $each -}}
{{- $most = div (add (int (dig "max" 1 .)) (sub $each 1)) $each -}}
{{- end -}}
{{- if not (kindIs "invalid" $pool.autoscaling.minPods) -}}{{- $least = $pool.autoscaling.minPods -}}{{- end -}}
{{- if not (kindIs "invalid" $pool.autoscaling.maxPods) -}}{{- $most = $pool.autoscaling.maxPods -}}{{- $scales = true -}}{{- end -}}
min: {{ int $least }}
max: {{ int $most }}
scales: {{ $scales }}
{{- end -}}

{{/* The namespace of this version in the Redis that it shares with the version before. */}}
{{- define "tandem.namespace" -}}
{{- printf "%s%s" (include "tandem.applicationText" .) (toJson .Values.image) | sha256sum | trunc 12 -}}
{{- end -}}

{{/* The share of a replica in its pod: cluster/config/deployment.py, ShareConfig. */}}
{{- define "tandem.share" -}}
{{- $pool := include "tandem.pool" . | fromYaml -}}
{{- $each := int $pool.replicasPerPod -}}
{{- $cores := int (include "tandem.cores" $pool.resources.limits.cpu) -}}
threads: {{ max 1 (div $cores $each) }}
{{- $gpus := int $pool.gpus }}
{{- if ge $gpus $each }}
{{- if mod $gpus $each }}{{ fail (printf "pools.%s: %d GPUs cannot be shared by %d replicas" .name $gpus $each) }}{{ end }}
{{- if gt $gpus $each }}{{ fail (printf "pools.%s: a replica computes on one GPU: set gpus to %d, or replicasPerPod to %d" .name $each $gpus) }}{{ end }}
gpus: 1
per_device: 1
{{- else if gt $gpus 0 }}
{{- $sharing := div (add $each (sub $gpus 1)) $gpus }}
gpus: {{ divf 1 $sharing }}
per_device: {{ $sharing }}
{{- else }}
per_device: {{ $each }}
{{- end }}
resources: {tandem_{{ .name }}: 1}
{{- end -}}

{{/* The overrides that only the chart knows; the builder lays them over the configuration. */}}
{{- define "tandem.overrides" -}}
{{- $application := include "tandem.application" . | fromYaml -}}
directory.url: {{ include "tandem.redisAddress" . }}
{{ include "tandem.securityOverrides" . }}
{{- if and (eq .Values.mode "service") (eq .Values.ray.upgrade.type "NewCluster") }}
directory.namespace: {{ include "tandem.namespace" . | quote }}
{{- end }}
router.host: {{ dig "router" "host" "0.0.0.0" $application | quote }}
ray.drain_s: {{ include "tandem.drainSeconds" . }}
{{- range $name := list "router" "prefill" "decode" }}
ray.shares.{{ $name }}:
  {{- include "tandem.share" (dict "root" $ "name" $name) | nindent 2 }}
{{- end }}
{{- if ne .Values.model.source "image" }}
model.path: {{ include "tandem.modelFolder" . }}
{{- end }}
{{- end -}}

{{/* Ray Serve's own configuration of the application. */}}
{{- define "tandem.serveConfig" -}}
proxy_location: Disabled  # tokens go from the routers' own ports, not through Serve's proxies
applications:
  - name: tandem
    import_path: cluster.deploy.serve_app:application
    route_prefix: null
    args:
      config: /etc/tandem/tandem.yaml
      # A ConfigMap reaches pods that run late: the builder waits until it is this one.
      checksum: {{ include "tandem.applicationText" . | replace "\r\n" "\n" | trim | sha256sum }}
      overrides:
        {{- include "tandem.overrides" . | nindent 8 }}
    deployments:
      {{- range $name := list "router" "prefill" "decode" }}
      {{- $pool := include "tandem.pool" (dict "root" $ "name" $name) | fromYaml }}
      {{- $options := deepCopy $pool.serve }}
      {{- if and (eq $name "router") (not (hasKey $options "autoscaling_config")) }}
      {{- $_ := set $options "num_replicas" (int (include "tandem.pods" (dict "root" $ "name" $name))) }}
      {{- end }}
      {{- if $options }}
      - name: {{ $name }}
        {{- toYaml $options | nindent 8 }}
      {{- end }}
      {{- end }}
{{- end -}}
