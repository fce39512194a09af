{{/* Value of the first of these environment variables in extraEnv, which take precedence over the settings; or "". */}}
{{- define "load-watcher.environment" -}}
{{- $found := "" -}}
{{- range $name := .names -}}
{{- range $.context.Values.extraEnv -}}
{{- if and (eq .name $name) .value (not $found) }}{{ $found = .value }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{- define "load-watcher.provider" -}}
{{- $names := list "LOAD_WATCHER_PROVIDER_NAME" "METRICS_PROVIDER_NAME" -}}
{{- default .Values.config.provider.name (include "load-watcher.environment" (dict "context" . "names" $names)) | lower -}}
{{- end -}}

{{- define "load-watcher.providerAddress" -}}
{{- $names := list "LOAD_WATCHER_PROVIDER_ADDRESS" "METRICS_PROVIDER_ADDRESS" -}}
{{- default (default "" .Values.config.provider.address) (include "load-watcher.environment" (dict "context" . "names" $names)) -}}
{{- end -}}

{{/* An egress rule, as JSON, to the host and port of an address: .url, .namespace of the release, and .own, the port on
which the program itself listens, for a Service with the port 80 or 443. A policy applies to the addresses and ports of
pods, not to those of a Service. The pods of a Service in the cluster are in its namespace. */}}
{{- define "load-watcher.destination" -}}
{{- $ports := list -}}
{{- $namespaces := list -}}
{{- range regexReplaceAll "^[A-Za-z0-9+]+://([^/]*@)?([^/?#]*).*$" (trim .url) "${2}" | splitList "," -}}
{{- $port := regexFind ":[0-9]+$" . -}}
{{- $host := trimSuffix $port . -}}
{{- $inside := regexMatch "^[a-z0-9-]+([.][a-z0-9-]+([.]svc([.].*)?)?)?$" $host -}}
{{- $defaults := dict "http" 80 "https" 443 -}}
{{- $number := default (get $defaults (splitList ":" $.url | first | lower)) (trimPrefix ":" $port | int) | default 5432 -}}
{{- $ports = append $ports $number -}}
{{- if and $.own $inside (has $number (list 80 443)) }}{{ $ports = append $ports $.own }}{{ end -}}
{{- $namespace := regexReplaceAll "^[a-z0-9-]+[.]([a-z0-9-]+)[.]svc([.].*)?$" $host "${1}" -}}
{{- if eq $namespace $host }}{{ $namespace = ternary $.namespace "" (regexMatch "^[a-z0-9-]+$" $host) }}{{ end -}}
{{- $namespaces = append $namespaces $namespace -}}
{{- end -}}
{{- $rule := dict "ports" list -}}
{{- range uniq $ports }}{{ $_ := set $rule "ports" (append $rule.ports (dict "port" . "protocol" "TCP")) }}{{ end -}}
{{- if not (has "" $namespaces) -}}
{{- $to := list -}}
{{- range uniq $namespaces -}}
{{- $to = append $to (dict "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" .))) -}}
{{- end -}}
{{- $_ := set $rule "to" $to -}}
{{- end -}}
{{- toJson $rule -}}
{{- end -}}

{{/* The egress rules of the watcher for the addresses in its settings, as JSON. */}}
{{- define "load-watcher.egress" -}}
{{- $config := .Values.config -}}
{{- $provider := include "load-watcher.provider" . -}}
{{- $own := get (dict "prometheus" 9090 "influxdb" 8086) $provider -}}
{{- $urls := list -}}
{{- $rules := list -}}
{{- if eq $provider "datadog" }}{{ $urls = list "https://api.datadoghq.com" }}{{ end -}}
{{- with include "load-watcher.providerAddress" . }}{{ $urls = list . }}{{ end -}}
{{- range $urls }}{{ $rules = append $rules (include "load-watcher.destination" (dict "url" . "own" $own "namespace" $.Release.Namespace) | fromJson) }}{{ end -}}
{{- $others := list -}}
{{- if hasPrefix "postgres" (default "" (default dict $config.store).url) }}{{ $others = append $others $config.store.url }}{{ end -}}
{{- range list "agents" "qrms" -}}
{{- with (default dict (get $config .)).urls }}{{ $others = concat $others . }}{{ end -}}
{{- end -}}
{{- range $others }}{{ $rules = append $rules (include "load-watcher.destination" (dict "url" . "namespace" $.Release.Namespace) | fromJson) }}{{ end -}}
{{- dict "rules" (uniq $rules) | toJson -}}
{{- end -}}

{{/* Fails if the settings cannot work with the other values. */}}
{{- define "load-watcher.check" -}}
{{- $provider := include "load-watcher.provider" . -}}
{{- $known := concat (list "metrics-server" "kubernetesmetricsserver" "prometheus" "influxdb" "replay") .Values.extraProviders -}}
{{- if not (has $provider $known) -}}
{{- fail (printf "config.provider.name: %q is not a provider; use metrics-server, prometheus, or influxdb. For a provider of another package in your image, for example datadog, set extraProviders=[%s]" $provider $provider) -}}
{{- end -}}
{{- $plugins := concat (list "TargetLoadPacking" "LoadVariationRiskBalancing" "LowRiskOverCommitment" "Peaks" "NodeResourceLimits" "LoadAwareScheduling" "HighLoadFilter") .Values.scheduler.extraPlugins -}}
{{- range $profile, $table := .Values.scheduler.profiles -}}
{{- range (default dict $table).plugins -}}
{{- if not (has .name $plugins) -}}
{{- fail (printf "scheduler.profiles.%s.plugins: %q is not a plug-in; use %s. For a plug-in of another package in your image, add its name to scheduler.extraPlugins" $profile .name (join ", " $plugins)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $example := get (dict "prometheus" "http://prometheus-k8s.monitoring.svc:9090" "influxdb" "http://influxdb.monitoring.svc:8086") $provider -}}
{{- if and $example (not (include "load-watcher.providerAddress" .)) -}}
{{- fail (printf "config.provider.address is not set, and the provider %s has no default address: for example config.provider.address=%s" $provider $example) -}}
{{- end -}}
{{- $store := default dict .Values.config.store -}}
{{- if and (hasPrefix "sqlite" (default "sqlite" $store.url)) $store.max_size -}}
{{- if ge (include "load-watcher.mebibytes" $store.max_size | int64) (include "load-watcher.mebibytes" .Values.storage.data | int64) -}}
{{- fail (printf "config.store.max_size (%v) must be less than storage.data (%v), the size of the volume: a pod that fills its volume is evicted" $store.max_size .Values.storage.data) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The peers that send requests of kube-scheduler, as JSON under .peers; none: every client. */}}
{{- define "load-watcher.schedulerPeers" -}}
{{- $peers := .Values.networkPolicy.scheduler -}}
{{- if kindIs "invalid" $peers -}}
{{- if and .Release.IsUpgrade (not .Values.networkPolicy.from) -}}
{{- fail "networkPolicy.scheduler is not set. An upgrade requires it, because the default refuses a kube-scheduler on the host network, as that of kubeadm: set the peers of kube-scheduler (docs/tasks/deploy.md#network), or [] to admit every client as before" -}}
{{- end -}}
{{- $namespace := dict "matchLabels" (dict "kubernetes.io/metadata.name" "kube-system") -}}
{{- $labels := list (dict "key" "component" "operator" "In" "values" (list "kube-scheduler" "scheduler")) -}}
{{- $peers = list (dict "namespaceSelector" $namespace "podSelector" (dict "matchExpressions" $labels)) -}}
{{- end -}}
{{- dict "peers" $peers | toJson -}}
{{- end -}}

{{/* The agents and QoS Resource Managers of deploy/agent and deploy/qrm, as JSON under .peers. */}}
{{- define "load-watcher.daemonPeers" -}}
{{- $peers := list -}}
{{- range list "load-watcher-agent" "load-watcher-qrm" -}}
{{- $namespace := dict "matchLabels" (dict "kubernetes.io/metadata.name" .) -}}
{{- $pods := dict "matchLabels" (dict "app.kubernetes.io/name" .) -}}
{{- $peers = append $peers (dict "namespaceSelector" $namespace "podSelector" $pods) -}}
{{- end -}}
{{- dict "peers" $peers | toJson -}}
{{- end -}}
