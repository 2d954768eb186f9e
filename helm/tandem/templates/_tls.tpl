{{- define "tandem.redisTls" -}}
{{- and .Values.tls.enabled .Values.tls.redis.enabled -}}
{{- end -}}

{{/* The Secret of a certificate: root, part (frontEnds, internal, redis). */}}
{{- define "tandem.tlsSecret" -}}
{{- $tls := .root.Values.tls -}}
{{- $given := (get $tls .part).secretName -}}
{{- if $given -}}{{- $given -}}
{{- else if or $tls.certManager.issuerRef.name $tls.generate -}}
{{- printf "%s-tls-%s" (include "tandem.name" .root) (kebabcase .part) -}}
{{- else -}}
{{- fail (printf "tls.%s.secretName: name the Secret of the certificate, or an issuer of cert-manager (tls.certManager.issuerRef.name), or set tls.generate; tls.enabled: false does without TLS" .part) -}}
{{- end -}}
{{- end -}}

{{/* The parts whose certificate the chart has made: root. */}}
{{- define "tandem.tlsParts" -}}
{{- $tls := .Values.tls -}}
{{- $parts := list -}}
{{- if $tls.enabled -}}
{{- range $part := list "frontEnds" "internal" "redis" -}}
{{- $own := not (get $tls $part).secretName -}}
{{- if and $own (or (ne $part "redis") (and $tls.redis.enabled (not $.Values.redis.url))) -}}
{{- $parts = append $parts $part -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- join " " $parts -}}
{{- end -}}

{{/* The DNS names of a certificate: root, part. */}}
{{- define "tandem.dnsNames" -}}
{{- $name := include "tandem.name" .root -}}
{{- $names := list "tandem.internal" -}}
{{- if ne .part "internal" -}}
{{- $names = list "localhost" -}}
{{- range $service := ternary (list $name (printf "%s-grpc" $name)) (list (printf "%s-redis" $name)) (eq .part "frontEnds") -}}
{{- $names = concat $names (list $service (printf "%s.%s" $service $.root.Release.Namespace) (printf "%s.%s.svc" $service $.root.Release.Namespace) (printf "%s.%s.svc.cluster.local" $service $.root.Release.Namespace)) -}}
{{- end -}}
{{- end -}}
{{- if eq .part "frontEnds" -}}{{- $names = concat $names .root.Values.tls.frontEnds.dnsNames -}}{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{/* The name by which proxies and Prometheus know the front ends. */}}
{{- define "tandem.serverName" -}}
{{- .Values.tls.frontEnds.serverName | default (printf "%s.%s.svc" (include "tandem.name" .) .Release.Namespace) -}}
{{- end -}}

{{/* The client's certificate and the authority for Redis, as paths; empty without them. */}}
{{- define "tandem.redisFiles" -}}
{{- $folder := include "tandem.secretsFolder" . -}}
{{- $redis := .Values.tls.redis -}}
{{- if not .Values.redis.url -}}
{{- toJson (dict "authority" (printf "%s/redis/ca.crt" $folder) "certificate" (printf "%s/internal/tls.crt" $folder) "key" (printf "%s/internal/tls.key" $folder)) -}}
{{- else if not $redis.secretName -}}{}
{{- else if $redis.clientCertificate -}}
{{- toJson (dict "authority" (printf "%s/redis/ca.crt" $folder) "certificate" (printf "%s/redis/tls.crt" $folder) "key" (printf "%s/redis/tls.key" $folder)) -}}
{{- else -}}
{{- toJson (dict "authority" (printf "%s/redis/ca.crt" $folder)) -}}
{{- end -}}
{{- end -}}

{{/* The overrides of `security`, `tls` and `router.api_keys`. */}}
{{- define "tandem.securityOverrides" -}}
{{- $folder := include "tandem.secretsFolder" . -}}
security.secret_file: {{ $folder }}/cluster/secret
{{- if include "tandem.keysSecret" . | fromJson }}
router.api_keys: {{ $folder }}/keys/keys.yaml
{{- else if .Values.security.apiKeys.redis }}
router.api_keys: redis
{{- end }}
{{- if .Values.tls.enabled }}
tls.front_ends: {certificate: {{ $folder }}/front-ends/tls.crt, key: {{ $folder }}/front-ends/tls.key}
tls.internal: {certificate: {{ $folder }}/internal/tls.crt, key: {{ $folder }}/internal/tls.key, authority: {{ $folder }}/internal/ca.crt}
{{- if eq (include "tandem.redisTls" .) "true" }}
{{- with include "tandem.redisFiles" . | fromJson }}
tls.redis: {{ toJson . }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
