{{/* The folder of all secrets in a pod; the files below it are named here alone. */}}
{{- define "tandem.secretsFolder" -}}/etc/tandem-secrets{{- end -}}

{{- define "tandem.secretName" -}}
{{- .Values.security.secretName | default (printf "%s-cluster" (include "tandem.name" .)) -}}
{{- end -}}

{{- define "tandem.rayTokenSecret" -}}
{{- .Values.ray.tokenSecret | default (printf "%s-ray-token" (include "tandem.name" .)) -}}
{{- end -}}

{{/* The Secret with the file of hashed keys, if there is one: name, key. */}}
{{- define "tandem.keysSecret" -}}
{{- $keys := .Values.security.apiKeys -}}
{{- if $keys.secretName -}}{{- toJson (dict "name" $keys.secretName "key" $keys.key) -}}
{{- else if $keys.generate -}}{{- toJson (dict "name" (printf "%s-keys" (include "tandem.name" .)) "key" "keys.yaml") -}}
{{- else -}}{}{{- end -}}
{{- end -}}

{{/* "true" where requests need a key. */}}
{{- define "tandem.keysOn" -}}
{{- $keys := .Values.security.apiKeys -}}
{{- $application := include "tandem.application" . | fromYaml -}}
{{- $ways := list -}}
{{- if $keys.secretName -}}{{- $ways = append $ways "security.apiKeys.secretName" -}}{{- end -}}
{{- if $keys.redis -}}{{- $ways = append $ways "security.apiKeys.redis" -}}{{- end -}}
{{- if $keys.generate -}}{{- $ways = append $ways "security.apiKeys.generate" -}}{{- end -}}
{{- if dig "router" "api_keys" "" $application -}}{{- $ways = append $ways "application.router.api_keys" -}}{{- end -}}
{{- if gt (len $ways) 1 -}}{{- fail (printf "API keys: %s; give one of them" (join ", " $ways)) -}}{{- end -}}
{{- if $ways -}}true{{- end -}}
{{- end -}}

{{/* The password of Redis: name, key; neither where a Redis of yours needs none. */}}
{{- define "tandem.redisPassword" -}}
{{- $given := .Values.redis.passwordSecret -}}
{{- if $given.name -}}{{- toJson $given -}}
{{- else if .Values.redis.url -}}{}
{{- else -}}{{- toJson (dict "name" (printf "%s-redis" (include "tandem.name" .)) "key" "password") -}}{{- end -}}
{{- end -}}

{{/* What stands in a Secret already, or a new random text: root, name, key. */}}
{{- define "tandem.kept" -}}
{{- $found := lookup "v1" "Secret" .root.Release.Namespace .name | default dict -}}
{{- dig "data" .key (randAlphaNum 48 | b64enc) $found -}}
{{- end -}}

{{/* What the chart refuses; each message names the value that says otherwise. */}}
{{- define "tandem.refusals" -}}
{{- $v := .Values -}}
{{- if not (or (include "tandem.keysOn" .) $v.security.allowWithoutKeys) -}}
{{- fail "security.apiKeys: name a Secret of hashed keys (secretName), or set redis or generate; security.allowWithoutKeys: true serves everybody" -}}
{{- end -}}
{{- if and $v.tls.enabled $v.tls.redis.enabled (hasPrefix "redis://" $v.redis.url) -}}
{{- fail "redis.url: rediss:// is needed, or tls.redis.enabled: false" -}}
{{- end -}}
{{- if and (hasPrefix "rediss://" $v.redis.url) (not (eq (include "tandem.redisTls" .) "true")) -}}
{{- fail "redis.url: rediss:// needs tls.enabled and tls.redis.enabled" -}}
{{- end -}}
{{- if and $v.redis.url (not $v.redis.passwordSecret.name) (not $v.tls.redis.clientCertificate) (not $v.redis.allowWithoutPassword) -}}
{{- fail "redis.passwordSecret.name: the password of redis.url; redis.allowWithoutPassword: true does without" -}}
{{- end -}}
{{- if and $v.networkPolicy.enabled (not $v.networkPolicy.clients) (or $v.ingress.enabled $v.gatewayApi.enabled (ne $v.service.type "ClusterIP")) -}}
{{- fail "networkPolicy.clients: name the peers of the Ingress, the Gateway or the load balancer; empty is this namespace alone, [{}] is everybody" -}}
{{- end -}}
{{- if and $v.monitoring.serviceMonitor (include "tandem.keysOn" .) (not $v.security.apiKeys.generate) (not $v.monitoring.keySecret.name) -}}
{{- fail "monitoring.keySecret.name: the routers' metrics need a key; the Secret that has it" -}}
{{- end -}}
{{- end -}}

{{/* The files of a pod, by Secret: root, component. The routers alone have keys and the certificate of clients. */}}
{{- define "tandem.secretSources" -}}
{{- $root := .root -}}
{{- $tls := $root.Values.tls -}}
{{- $engine := ne .component "head" -}}
{{- $redisTls := eq (include "tandem.redisTls" $root) "true" -}}
{{- $forRay := and (not $engine) $redisTls $root.Values.ray.faultTolerance.enabled -}}
{{- if $engine }}
- secret: {name: {{ include "tandem.secretName" $root }}, items: [{key: secret, path: cluster/secret}]}
{{- end }}
{{- if eq .component "router" }}
{{- with include "tandem.keysSecret" $root | fromJson }}
- secret: {name: {{ .name }}, items: [{key: {{ .key }}, path: keys/keys.yaml}]}
{{- end }}
{{- if $tls.enabled }}
- secret: {name: {{ include "tandem.tlsSecret" (dict "root" $root "part" "frontEnds") }}, items: [{key: tls.crt, path: front-ends/tls.crt}, {key: tls.key, path: front-ends/tls.key}]}
{{- end }}
{{- end }}
{{- if and $tls.enabled (or $engine (and $forRay (not $root.Values.redis.url))) }}
- secret: {name: {{ include "tandem.tlsSecret" (dict "root" $root "part" "internal") }}, items: [{key: tls.crt, path: internal/tls.crt}, {key: tls.key, path: internal/tls.key}, {key: ca.crt, path: internal/ca.crt}]}
{{- end }}
{{- if and $redisTls (or $engine $forRay) (or (not $root.Values.redis.url) $tls.redis.secretName) }}
- secret: {name: {{ include "tandem.tlsSecret" (dict "root" $root "part" "redis") }}, items: [{key: ca.crt, path: redis/ca.crt}{{ if and $root.Values.redis.url $tls.redis.clientCertificate }}, {key: tls.crt, path: redis/tls.crt}, {key: tls.key, path: redis/tls.key}{{ end }}]}
{{- end }}
{{- end -}}
