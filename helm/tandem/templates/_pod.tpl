{{- define "tandem.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.podSecurity.runAsUser }}
runAsGroup: {{ .Values.podSecurity.runAsUser }}
fsGroup: {{ .Values.podSecurity.fsGroup }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "tandem.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: {{ .Values.podSecurity.readOnlyRootFilesystem }}
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The memory of a pool's pod whose resources name none: see pools in values.yaml. */}}
{{- define "tandem.memory" -}}
{{- $each := int .pool.replicasPerPod -}}
{{- if eq .component "router" -}}4Gi
{{- else if gt (int .pool.gpus) 0 -}}{{- printf "%dGi" (mul 6 $each) -}}
{{- else -}}{{- printf "%dGi" (mul $each (add 8 (mulf 1.25 .root.Values.model.sizeGi | ceil | int))) -}}{{- end -}}
{{- end -}}

{{- define "tandem.environment" -}}
{{- $environment := dict
  "RAY_USAGE_STATS_ENABLED" "0" "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO" "0" "RAY_worker_niceness" "0"
  "HF_HUB_OFFLINE" (ternary "0" "1" (eq .root.Values.model.source "image"))
  "HOME" "/var/cache/tandem" "TANDEM_HEALTH_DIR" "/var/run/tandem" -}}
{{- /* What `kubectl logs` shows: Ray keeps the logs of replicas in files. */ -}}
{{- if .engine -}}{{- $_ := set $environment "TANDEM_CONTAINER_LOG" "/proc/1/fd/2" -}}{{- end -}}
{{- $environment = merge (deepCopy .extra) (deepCopy .root.Values.ray.environment) $environment -}}
{{- range $key := keys $environment | sortAlpha }}
- {name: {{ $key }}, value: {{ get $environment $key | toString | quote }}}
{{- end }}
{{- if .engine }}
{{- with include "tandem.redisPassword" .root | fromJson }}
- name: TANDEM_REDIS_PASSWORD
  valueFrom: {secretKeyRef: {{ toJson . }}}
{{- end }}
{{- end }}
{{- with include "tandem.rayToken" .root | trim }}
{{ . }}
{{- end }}
{{- end -}}

{{/* Here and not by authOptions alone, which an operator of before KubeRay 1.5.1 drops unread. */}}
{{- define "tandem.rayToken" -}}
{{- if eq .Values.ray.auth "token" }}
- {name: RAY_AUTH_MODE, value: token}
- name: RAY_AUTH_TOKEN
  valueFrom: {secretKeyRef: {name: {{ include "tandem.rayTokenSecret" . }}, key: auth_token}}
{{- end }}
{{- end -}}

{{/* What the head's own client of Redis reads: Ray's names of tandem.redisFiles. */}}
{{- define "tandem.headEnvironment" -}}
{{- $found := dict -}}
{{- if and .Values.ray.faultTolerance.enabled (eq (include "tandem.redisTls" .) "true") -}}
{{- $files := include "tandem.redisFiles" . | fromJson -}}
{{- range $ours, $rays := dict "authority" "RAY_REDIS_CA_CERT" "certificate" "RAY_REDIS_CLIENT_CERT" "key" "RAY_REDIS_CLIENT_KEY" -}}
{{- with get $files $ours -}}{{- $_ := set $found $rays . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* A pool's pod is ready when a replica in it passed its health check just now. */}}
{{- define "tandem.readiness" -}}
{{- if eq .component "head" -}}
httpGet: {path: /api/gcs_healthz, port: dashboard}
{{- else if eq .component "router" -}}
httpGet: {path: /healthz, port: http{{ if .root.Values.tls.enabled }}, scheme: HTTPS{{ end }}}
{{- else -}}
exec:
  command:
    - bash
    - -c
    - test -n "$(find /var/run/tandem -type f -newermt '-15 seconds' -print -quit)"
{{- end }}
periodSeconds: 5
timeoutSeconds: 5
failureThreshold: 3
{{- end -}}

{{/* The folder of the request log's files, in pods of routers alone. */}}
{{- define "tandem.rowsFolder" -}}
{{- if eq .component "router" -}}{{- dig "request_log" "folder" "" .root.Values.application | default "" -}}{{- end -}}
{{- end -}}

{{/* The one pod of this chart: root, component, pool (its values), ports. */}}
{{- define "tandem.pod" -}}
{{- $root := .root -}}
{{- $pool := .pool -}}
{{- $limits := deepCopy $pool.resources.limits -}}
{{- $requests := deepCopy $pool.resources.requests -}}
{{- if gt (int $pool.gpus) 0 -}}{{- $_ := set $limits $pool.gpuResource (int $pool.gpus) -}}{{- $_ := set $requests $pool.gpuResource (int $pool.gpus) -}}{{- end -}}
{{- if $pool.rdma.resource -}}{{- $_ := set $limits $pool.rdma.resource (int (default 1 $pool.rdma.count)) -}}{{- $_ := set $requests $pool.rdma.resource (int (default 1 $pool.rdma.count)) -}}{{- end -}}
{{- if ne .component "head" -}}
{{- $own := coalesce (get $limits "memory") (get $requests "memory") (include "tandem.memory" .) -}}
{{- range $part := list $limits $requests -}}
{{- if not (hasKey $part "memory") -}}{{- $_ := set $part "memory" $own -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $drain := add (include "tandem.drainSeconds" $root | int) $root.Values.replacementSeconds -}}
{{- $engine := has .component (list "prefill" "decode") -}}
{{- $secrets := include "tandem.secretSources" (dict "root" $root "component" .component) | trim -}}
metadata:
  labels:
    {{- include "tandem.selector" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
    {{- with $pool.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    checksum/config: {{ include "tandem.applicationText" $root | sha256sum }}
    {{- with $pool.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  serviceAccountName: {{ include "tandem.name" $root }}
  automountServiceAccountToken: {{ and (eq .component "head") (eq (include "tandem.autoscaling" $root) "true") }}
  terminationGracePeriodSeconds: {{ ternary 30 (add $drain 60) (eq .component "head") }}
  securityContext: {{- include "tandem.podSecurity" $root | nindent 4 }}
  {{- with $root.Values.image.pullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pool.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $pool.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with $pool.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pool.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pool.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if $pool.topologySpread }}
  topologySpreadConstraints:
    {{- range $pool.topologySpread }}
    - {{- toYaml . | nindent 6 }}
      labelSelector:
        matchLabels:
          {{- include "tandem.selector" $root | nindent 10 }}
          app.kubernetes.io/component: {{ $.component }}
    {{- end }}
  {{- end }}
  {{- if ne .component "head" }}
  {{- with include "tandem.modelFetch" $root | trim }}
  initContainers:
    {{- . | nindent 4 }}
  {{- end }}
  {{- end }}
  containers:
    - name: {{ ternary "ray-head" "ray-worker" (eq .component "head") }}
      image: {{ include "tandem.image" $root }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      env: {{- include "tandem.environment" (dict "root" $root "engine" (ne .component "head") "extra" (merge (deepCopy $pool.environment) (ternary (deepCopy $root.Values.nccl) dict $engine) (ternary (include "tandem.headEnvironment" $root | fromJson) dict (eq .component "head")))) | trim | nindent 8 }}
      ports:
        {{- range $name, $port := .ports }}
        - {name: {{ $name }}, containerPort: {{ $port }}}
        {{- end }}
      resources: {{- toYaml (dict "requests" $requests "limits" $limits) | nindent 8 }}
      securityContext: {{- include "tandem.containerSecurity" $root | nindent 8 }}
      livenessProbe:
        httpGet: {path: /api/local_raylet_healthz, port: agent}
        initialDelaySeconds: 60
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 12
      readinessProbe: {{- include "tandem.readiness" . | nindent 8 }}
      {{- if ne .component "head" }}
      lifecycle:
        preStop:
          exec: {command: [bash, /etc/tandem/drain.sh, "{{ $drain }}"]}
      {{- end }}
      volumeMounts:
        - {name: config, mountPath: /etc/tandem, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        - {name: cache, mountPath: /var/cache/tandem}
        - {name: run, mountPath: /var/run/tandem}
        - {name: shared-memory, mountPath: /dev/shm}
        {{- if $secrets }}
        - {name: secrets, mountPath: {{ include "tandem.secretsFolder" $root }}, readOnly: true}
        {{- end }}
        {{- with include "tandem.rowsFolder" . | trim }}
        - {name: rows, mountPath: {{ . }}}
        {{- end }}
        {{- if ne .component "head" }}
        {{- with include "tandem.modelMount" $root | trim }}{{ . | nindent 8 }}{{ end }}
        {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ include "tandem.name" $root }}-config}
    - {name: tmp, emptyDir: {}}
    - {name: cache, emptyDir: {}}
    - {name: run, emptyDir: {}}
    - name: shared-memory
      emptyDir: {medium: Memory, sizeLimit: {{ $pool.sharedMemory }}}
    {{- with $secrets }}
    - name: secrets
      projected:
        defaultMode: 288  # 0440
        sources: {{- . | nindent 10 }}
    {{- end }}
    {{- if include "tandem.rowsFolder" . | trim }}
    - name: rows
      {{- toYaml ($root.Values.requestLog.volume | default (dict "emptyDir" dict)) | nindent 6 }}
    {{- end }}
    {{- if ne .component "head" }}
    {{- with include "tandem.modelVolume" $root | trim }}{{ . | nindent 4 }}{{ end }}
    {{- end }}
{{- end -}}
