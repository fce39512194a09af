{{- define "load-watcher.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 54 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 54 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "load-watcher.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "load-watcher.labels" -}}
{{ include "load-watcher.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "load-watcher.serviceAccountName" -}}
{{- default (ternary (include "load-watcher.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{/* Whether the source is metrics-server, by either of its names; "" if not. */}}
{{- define "load-watcher.metricsServer" -}}
{{- if has (lower .Values.config.provider.name) (list "metrics-server" "kubernetesmetricsserver") }}true{{ end -}}
{{- end -}}

{{/* Whether pods use the Kubernetes API; "" if not. */}}
{{- define "load-watcher.asksKubernetes" -}}
{{- if or .Values.rbac.nodes .Values.rbac.nodeMetrics .Values.scheduler.enabled (include "load-watcher.metricsServer" .) (include "load-watcher.publishes" .) }}true{{ end -}}
{{- end -}}

{{/* Whether NodeMetrics are written to the cluster; "" if not. */}}
{{- define "load-watcher.publishes" -}}
{{- if (default dict .Values.config.koordinator).publish }}true{{ end -}}
{{- end -}}

{{/* Whether a profile binds pods; "" if none does. */}}
{{- define "load-watcher.binds" -}}
{{- $binds := "" -}}
{{- if .Values.scheduler.enabled -}}
{{- range $name, $profile := .Values.scheduler.profiles -}}
{{- if and $profile $profile.bind }}{{ $binds = "true" }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $binds -}}
{{- end -}}

{{- define "load-watcher.scheme" -}}
{{- if (default dict .Values.config.server).tls_cert }}https{{ else }}http{{ end -}}
{{- end -}}

{{/* Whether the dashboard is to show the agents of this release, and nothing else is said of it; "" if not. */}}
{{- define "load-watcher.showsAgents" -}}
{{- $agent := .Values.agent -}}
{{- $named := default dict .Values.config.dashboard -}}
{{- if and $agent.enabled $agent.pages (not $agent.restore) (not $named.agents) (not $named.agent_pods) -}}
{{- required "agent.pages needs agent.existingSecret: without a token the agents have no pages at the addresses of their pods" $agent.existingSecret | empty | not -}}
{{- end -}}
{{- end -}}

{{/* The settings with what only the release knows, as TOML. */}}
{{- define "load-watcher.config" -}}
{{- include "load-watcher.toml" (dict "table" (include "load-watcher.settings" . | fromJson) "path" "") -}}
{{- end -}}

{{/* The same as JSON. */}}
{{- define "load-watcher.settings" -}}
{{- $config := deepCopy .Values.config -}}
{{- $peers := default dict $config.peers -}}
{{- if not $peers.urls -}}
{{- $_ := set $peers "urls" (list (printf "%s://%s-headless:2020" (include "load-watcher.scheme" .) (include "load-watcher.fullname" .))) -}}
{{- end -}}
{{- $_ := set $config "peers" $peers -}}
{{- if .Values.scheduler.enabled -}}
{{- $_ := set $config "scheduler" .Values.scheduler.profiles -}}
{{- end -}}
{{- if include "load-watcher.showsAgents" . -}}
{{- $labels := include "load-watcher.agentSelectorLabels" . | fromYaml -}}
{{- $dashboard := default dict $config.dashboard -}}
{{- $_ := set $dashboard "agent_pods" (dict "namespace" .Release.Namespace "selector" (printf "app.kubernetes.io/name=%s,app.kubernetes.io/instance=%s" (get $labels "app.kubernetes.io/name") (get $labels "app.kubernetes.io/instance"))) -}}
{{- if not $dashboard.token_file -}}
{{- $_ := set $dashboard "token_file" "/run/secrets/load-watcher-agent/token" -}}
{{- end -}}
{{- $_ := set $config "dashboard" $dashboard -}}
{{- end -}}
{{- toJson $config -}}
{{- end -}}

{{/* Where agents are found by the labels of their pods, as JSON: of each selection in the settings its namespace and port. */}}
{{- define "load-watcher.selections" -}}
{{- $config := include "load-watcher.settings" . | fromJson -}}
{{- $dashboard := default dict $config.dashboard -}}
{{- $found := list -}}
{{- range list (list (default dict $config.agents).pods 2023) (list $dashboard.agent_pods 2023) (list $dashboard.qrm_pods 2024) -}}
{{- $selection := first . -}}
{{- if $selection -}}
{{- $table := ternary $selection dict (kindIs "map" $selection) -}}
{{- $found = append $found (dict "namespace" (default $.Release.Namespace $table.namespace) "port" (default (last .) $table.port)) -}}
{{- end -}}
{{- end -}}
{{- dict "found" (uniq $found) | toJson -}}
{{- end -}}

{{/* A table as TOML: its values first, then the tables in it. Helm's own toToml writes whole numbers as 2020.0. */}}
{{- define "load-watcher.toml" -}}
{{- $path := .path -}}
{{- range $key, $value := .table -}}
{{- if and (not (kindIs "map" $value)) (not (kindIs "invalid" $value)) }}
{{ include "load-watcher.tomlKey" $key }} = {{ include "load-watcher.tomlValue" $value }}
{{- end -}}
{{- end -}}
{{- range $key, $value := .table -}}
{{- if kindIs "map" $value -}}
{{- $inner := printf "%s%s" (ternary "" (printf "%s." $path) (empty $path)) (include "load-watcher.tomlKey" $key) }}

[{{ $inner }}]
{{- include "load-watcher.toml" (dict "table" $value "path" $inner) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A value as TOML: as JSON, which TOML reads too, but for tables inside of lists. */}}
{{- define "load-watcher.tomlValue" -}}
{{- $parts := list -}}
{{- if kindIs "map" . -}}
{{- range $key, $value := . -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $parts = append $parts (printf "%s = %s" (include "load-watcher.tomlKey" $key) (include "load-watcher.tomlValue" $value)) -}}
{{- end -}}
{{- end -}}
{{- printf "{ %s }" (join ", " $parts) -}}
{{- else if kindIs "slice" . -}}
{{- range . -}}
{{- $parts = append $parts (include "load-watcher.tomlValue" .) -}}
{{- end -}}
{{- printf "[%s]" (join ", " $parts) -}}
{{- else -}}
{{- toJson . -}}
{{- end -}}
{{- end -}}

{{- define "load-watcher.tomlKey" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . }}{{ . }}{{ else }}{{ toJson . }}{{ end -}}
{{- end -}}

{{/* Of what runs on every node, by the context and its name. Not the watcher's own: its Service must not find it. */}}
{{- define "load-watcher.nodeSelectorLabels" -}}
app.kubernetes.io/name: {{ printf "%s-%s" (default .context.Chart.Name .context.Values.nameOverride | trunc 57 | trimSuffix "-") .part }}
app.kubernetes.io/instance: {{ .context.Release.Name }}
{{- end -}}

{{- define "load-watcher.nodeLabels" -}}
{{ include "load-watcher.nodeSelectorLabels" . }}
app.kubernetes.io/version: {{ .context.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .context.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .context.Chart.Name .context.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "load-watcher.agentSelectorLabels" -}}
{{- include "load-watcher.nodeSelectorLabels" (dict "context" . "part" "agent") -}}
{{- end -}}

{{- define "load-watcher.agentLabels" -}}
{{- include "load-watcher.nodeLabels" (dict "context" . "part" "agent") -}}
{{- end -}}

{{- define "load-watcher.qrmSelectorLabels" -}}
{{- include "load-watcher.nodeSelectorLabels" (dict "context" . "part" "qrm") -}}
{{- end -}}

{{- define "load-watcher.qrmLabels" -}}
{{- include "load-watcher.nodeLabels" (dict "context" . "part" "qrm") -}}
{{- end -}}

{{/* The settings of the agents with what only the release knows. */}}
{{- define "load-watcher.agentConfig" -}}
{{- $config := deepCopy .Values.agent.config -}}
{{- $agent := default dict $config.agent -}}
{{- $_ := set $agent "control" (printf "%s/agent-control" .Release.Namespace) -}}
{{- $_ := set $agent "proc" "/host/proc" -}}
{{- $_ := set $agent "cgroup" "/host/sys/fs/cgroup" -}}
{{- $_ := set $agent "state_file" "/state/agent.db" -}}
{{- $_ := set $config "agent" $agent -}}
{{- include "load-watcher.toml" (dict "table" $config "path" "") -}}
{{- end -}}

{{/* The settings of the QoS Resource Manager with what only the release knows. */}}
{{- define "load-watcher.qrmConfig" -}}
{{- $config := deepCopy .Values.qrm.config -}}
{{- $qrm := default dict $config.qrm -}}
{{- if and (not $qrm.watcher) (ne (default "roles" $qrm.cpu_policy) "katalyst") -}}
{{- $_ := set $qrm "watcher" (printf "%s://%s.%s:%v" (include "load-watcher.scheme" .) (include "load-watcher.fullname" .) .Release.Namespace .Values.service.port) -}}
{{- end -}}
{{- if eq (default "dry-run" $qrm.mode) "cri" -}}
{{- $_ := set $qrm "runtime_socket" .Values.qrm.runtimeSocket -}}
{{- end -}}
{{- $_ := set $qrm "state_dir" .Values.qrm.stateDirectory -}}
{{- $_ := set $qrm "sys" "/host/sys" -}}
{{- $_ := set $qrm "cgroup" "/host/sys/fs/cgroup" -}}
{{- $_ := set $qrm "kubelet_dir" "/host/kubelet" -}}
{{- $_ := set $config "qrm" $qrm -}}
{{- include "load-watcher.toml" (dict "table" $config "path" "") -}}
{{- end -}}
