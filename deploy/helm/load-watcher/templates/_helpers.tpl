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
{{ include "load-watcher.releaseLabels" . }}
{{- end -}}

{{- define "load-watcher.releaseLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Name of an object without namespace, by context and part. Releases with the same name in other namespaces get other
names; the namespace is omitted if it has the name of the release. */}}
{{- define "load-watcher.clusterName" -}}
{{- $fullname := include "load-watcher.fullname" .context -}}
{{- $name := printf "%s%s" $fullname (default "" .part) -}}
{{- ternary $name (printf "%s.%s" $name .context.Release.Namespace) (eq $fullname .context.Release.Namespace) -}}
{{- end -}}

{{/* Reference of an image, by context, image, key of the image in the values, and target of the Makefile. */}}
{{- define "load-watcher.image" -}}
{{- if not .image.repository -}}
{{- $example := printf "registry.example.com/%s" .name -}}
{{- fail (printf "%s.repository is not set, and no image is published: build one and push it with `make %s=%s:%s ARGS=--push`, then set %s.repository=%s" .key .make $example .context.Chart.AppVersion .key $example) -}}
{{- end -}}
{{- $tag := default (default .context.Chart.AppVersion .context.Values.image.tag) .image.tag -}}
{{- printf "%s%s" .image.repository (ternary (printf "@%s" .image.digest) (printf ":%s" $tag) (not (empty .image.digest))) | quote -}}
{{- end -}}

{{- define "load-watcher.serviceImage" -}}
{{- include "load-watcher.image" (dict "context" . "image" .Values.image "key" "image" "name" "load-watcher" "make" "image IMAGE") -}}
{{- end -}}

{{/* The given priority class, or one that protects what kube-scheduler depends on. */}}
{{- define "load-watcher.priorityClass" -}}
{{- default (ternary "system-cluster-critical" "" .Values.scheduler.enabled) .Values.priorityClassName -}}
{{- end -}}

{{/* The probes of an HTTP server. */}}
{{- define "load-watcher.probes" -}}
{{- $root := . -}}
{{- range list "startup" "liveness" "readiness" }}
{{ . }}Probe:
  httpGet:
    path: {{ ternary "/readyz" "/healthz" (eq . "readiness") }}
    port: http
    scheme: {{ include "load-watcher.scheme" $root | upper }}
  {{- toYaml (get $root.Values.probes .) | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The spec of a pod that runs one command with the settings of the service, by context, args, and whether it uses the
Kubernetes API as the service account (account). */}}
{{- define "load-watcher.commandPod" -}}
{{- $values := .context.Values -}}
restartPolicy: Never
{{- if .account }}
serviceAccountName: {{ include "load-watcher.serviceAccountName" .context }}
{{- end }}
automountServiceAccountToken: {{ .account }}
enableServiceLinks: false
{{- with $values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
- name: {{ first .args }}
  image: {{ include "load-watcher.serviceImage" .context }}
  imagePullPolicy: {{ $values.image.pullPolicy }}
  args: [{{ join ", " .args }}]
  env:
  - name: LOAD_WATCHER_CONFIG
    value: /etc/load-watcher/load-watcher.toml
  resources:
    requests:
      cpu: 50m
      memory: 128Mi
      ephemeral-storage: 64Mi
    limits:
      memory: 256Mi
      ephemeral-storage: 128Mi
  {{- with $values.securityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  volumeMounts:
  {{- if $values.existingSecret }}
  - name: secrets
    mountPath: /run/secrets/load-watcher
    readOnly: true
  {{- end }}
  - name: config
    mountPath: /etc/load-watcher
    readOnly: true
  - name: tmp
    mountPath: /tmp
volumes:
{{- with $values.existingSecret }}
- name: secrets
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
- name: config
  configMap:
    name: {{ include "load-watcher.fullname" .context }}
- name: tmp
  emptyDir:
    sizeLimit: 32Mi
{{- end -}}

{{- define "load-watcher.serviceAccountName" -}}
{{- default (ternary (include "load-watcher.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{/* "true" if the source is metrics-server, under either of its names; otherwise "". */}}
{{- define "load-watcher.metricsServer" -}}
{{- if has (lower .Values.config.provider.name) (list "metrics-server" "kubernetesmetricsserver") }}true{{ end -}}
{{- end -}}

{{/* "true" if the scheduling plug-ins run in the watcher; otherwise "". */}}
{{- define "load-watcher.innerExtender" -}}
{{- if and .Values.scheduler.enabled (not .Values.scheduler.separate) }}true{{ end -}}
{{- end -}}

{{/* "true" if the scheduling plug-ins run in a Deployment of their own; otherwise "". */}}
{{- define "load-watcher.separateExtender" -}}
{{- if and .Values.scheduler.enabled .Values.scheduler.separate }}true{{ end -}}
{{- end -}}

{{/* "true" if the pods use the Kubernetes API; otherwise "". */}}
{{- define "load-watcher.asksKubernetes" -}}
{{- if or .Values.rbac.nodes (and .Values.rbac.nodeMetrics (not .Values.scheduler.separate)) (include "load-watcher.innerExtender" .) (include "load-watcher.metricsServer" .) (include "load-watcher.publishes" .) (include "load-watcher.writesThresholds" .) (include "load-watcher.marksNodes" .) (include "load-watcher.showsPressure" .) }}true{{ end -}}
{{- end -}}

{{/* "true" if NodeMetrics are written to the cluster; otherwise "". */}}
{{- define "load-watcher.publishes" -}}
{{- if (default dict .Values.config.koordinator).publish }}true{{ end -}}
{{- end -}}

{{/* "true" if usage thresholds are written to nodes; otherwise "". */}}
{{- define "load-watcher.writesThresholds" -}}
{{- if (default dict .Values.config.koordinator).thresholds }}true{{ end -}}
{{- end -}}

{{/* "true" if marks are written to nodes; otherwise "". */}}
{{- define "load-watcher.marksNodes" -}}
{{- $marks := default dict .Values.config.marks -}}
{{- if and (or $marks.taints $marks.annotation) (not $marks.preview) }}true{{ end -}}
{{- end -}}

{{/* "true" if the pressure of nodes is computed, for which pods are watched; otherwise "". */}}
{{- define "load-watcher.showsPressure" -}}
{{- if (default dict .Values.config.marks).pressure }}true{{ end -}}
{{- end -}}

{{/* "true" if a profile binds pods; otherwise "". */}}
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

{{/* "true" if the dashboard shows the agents of this release and the settings select no others; otherwise "". */}}
{{- define "load-watcher.showsAgents" -}}
{{- $agent := .Values.agent -}}
{{- $named := default dict .Values.config.agents -}}
{{- if and $agent.enabled $agent.pages (not $agent.restore) (not $named.urls) (not $named.pods) -}}
{{- required "agent.pages requires agent.existingSecret: without a token, the agents do not serve these pages on their pod addresses" $agent.existingSecret | empty | not -}}
{{- end -}}
{{- end -}}

{{/* The settings, completed with release-specific values, as TOML. */}}
{{- define "load-watcher.config" -}}
{{- include "load-watcher.toml" (dict "table" (include "load-watcher.settings" . | fromJson) "path" "") -}}
{{- end -}}

{{/* The same settings as JSON. */}}
{{- define "load-watcher.settings" -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := unset $config "extender" -}}
{{- if include "load-watcher.innerExtender" . -}}
{{- $_ := set $config "scheduler" .Values.scheduler.profiles -}}
{{- end -}}
{{- if include "load-watcher.showsAgents" . -}}
{{- $labels := include "load-watcher.agentSelectorLabels" . | fromYaml -}}
{{- $agents := default dict $config.agents -}}
{{- $_ := set $agents "pods" (dict "namespace" .Release.Namespace "selector" (printf "app.kubernetes.io/name=%s,app.kubernetes.io/instance=%s" (get $labels "app.kubernetes.io/name") (get $labels "app.kubernetes.io/instance"))) -}}
{{- if not $agents.token_file -}}
{{- $_ := set $agents "token_file" "/run/secrets/load-watcher-agent/token" -}}
{{- end -}}
{{- if not (hasKey $agents "pod_usage") -}}
{{- $_ := set $agents "pod_usage" false -}}
{{- end -}}
{{- $_ := set $config "agents" $agents -}}
{{- end -}}
{{- toJson $config -}}
{{- end -}}

{{/* Namespace and port of each pod selection in the settings, as JSON. */}}
{{- define "load-watcher.selections" -}}
{{- $config := include "load-watcher.settings" . | fromJson -}}
{{- $found := list -}}
{{- range list (list (default dict $config.agents).pods 2023) (list (default dict $config.qrms).pods 2024) -}}
{{- $selection := first . -}}
{{- if $selection -}}
{{- $table := ternary $selection dict (kindIs "map" $selection) -}}
{{- $found = append $found (dict "namespace" (default $.Release.Namespace $table.namespace) "port" (default (last .) $table.port)) -}}
{{- end -}}
{{- end -}}
{{- dict "found" (uniq $found) | toJson -}}
{{- end -}}

{{/* A table as TOML: its values first, then its subtables. Helm's toToml writes integers as 2020.0. */}}
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

{{/* A value as TOML: written as JSON, which is valid TOML, except for tables in lists. */}}
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

{{/* Labels of a DaemonSet, by context and name. They differ from the watcher's labels, so that its Service does not select these pods. */}}
{{- define "load-watcher.nodeSelectorLabels" -}}
app.kubernetes.io/name: {{ printf "%s-%s" (default .context.Chart.Name .context.Values.nameOverride | trunc 57 | trimSuffix "-") .part }}
app.kubernetes.io/instance: {{ .context.Release.Name }}
{{- end -}}

{{- define "load-watcher.nodeLabels" -}}
{{ include "load-watcher.nodeSelectorLabels" . }}
{{ include "load-watcher.releaseLabels" .context }}
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

{{/* The settings of the separate extender: the server, cluster, Kubernetes and log settings of the watcher, and its own. */}}
{{- define "load-watcher.extenderConfig" -}}
{{- $config := pick (deepCopy .Values.config) "server" "cluster" "kubernetes" "log" -}}
{{- $extender := deepCopy (default dict .Values.config.extender) -}}
{{- if not $extender.watcher -}}
{{- $_ := set $extender "watcher" (printf "%s://%s.%s:%v" (include "load-watcher.scheme" .) (include "load-watcher.fullname" .) .Release.Namespace .Values.service.port) -}}
{{- end -}}
{{- $server := omit (default dict $config.server) "port" -}}
{{- if $config.server }}{{ $_ := set $config "server" $server }}{{ end -}}
{{- if and $server.protect_reads $server.token_file (not $extender.watcher_token_file) -}}
{{- $_ := set $extender "watcher_token_file" $server.token_file -}}
{{- end -}}
{{- $_ := set $config "extender" $extender -}}
{{- $_ := set $config "store" (dict "url" "sqlite:////data/load-watcher-extender.db" "on_unusable" "set-aside") -}}
{{- $_ := set $config "scheduler" .Values.scheduler.profiles -}}
{{- include "load-watcher.toml" (dict "table" $config "path" "") -}}
{{- end -}}

{{/* The settings of the agents, completed with release-specific values. */}}
{{- define "load-watcher.agentConfig" -}}
{{- $config := deepCopy .Values.agent.config -}}
{{- $agent := default dict $config.agent -}}
{{- $_ := set $agent "control" (printf "%s/%s-agent-control" .Release.Namespace (include "load-watcher.fullname" .)) -}}
{{- $_ := set $agent "proc" "/host/proc" -}}
{{- $_ := set $agent "cgroup" "/host/sys/fs/cgroup" -}}
{{- $_ := set $agent "state_file" "/state/agent.db" -}}
{{- $_ := set $config "agent" $agent -}}
{{- include "load-watcher.toml" (dict "table" $config "path" "") -}}
{{- end -}}

{{/* The settings of the QoS Resource Manager, completed with release-specific values. */}}
{{- define "load-watcher.qrmConfig" -}}
{{- $config := deepCopy .Values.qrm.config -}}
{{- $qrm := default dict $config.qrm -}}
{{- if and (not $qrm.watcher) (ne (toString $qrm.cpu_plugin) "false") -}}
{{- $_ := set $qrm "watcher" (printf "%s://%s.%s:%v" (include "load-watcher.scheme" .) (include "load-watcher.fullname" .) .Release.Namespace .Values.service.port) -}}
{{- end -}}
{{- if eq (default "dry-run" $qrm.mode) "cri" -}}
{{- $_ := set $qrm "runtime_socket" .Values.qrm.runtimeSocket -}}
{{- end -}}
{{- if eq (default "dry-run" $qrm.mode) "nri" -}}
{{- $_ := set $qrm "nri_socket" .Values.qrm.nriSocket -}}
{{- end -}}
{{- $_ := set $qrm "state_dir" .Values.qrm.stateDirectory -}}
{{- $_ := set $qrm "sys" "/host/sys" -}}
{{- $_ := set $qrm "cgroup" "/host/sys/fs/cgroup" -}}
{{- $_ := set $qrm "kubelet_dir" "/host/kubelet" -}}
{{- $_ := set $config "qrm" $qrm -}}
{{- include "load-watcher.toml" (dict "table" $config "path" "") -}}
{{- end -}}

{{- /* The given resources, with the memory for the number of nodes (docs/tasks/deploy.md), and the storage of the volumes data
and tmp: the pod is evicted above the limit, which has 256Mi for logs. */ -}}
{{- define "load-watcher.resources" -}}
{{- $limit := max 512 (add 420 (div (mul 18 (int .nodes)) 1000)) -}}
{{- $data := include "load-watcher.mebibytes" .data | int64 -}}
{{- $all := add $data (include "load-watcher.mebibytes" .tmp | int64) 256 -}}
{{- $requests := dict "memory" (printf "%dMi" (div $limit 2)) "ephemeral-storage" (printf "%dMi" $data) -}}
{{- $limits := dict "memory" (printf "%dMi" $limit) "ephemeral-storage" (printf "%dMi" $all) -}}
{{- toYaml (mergeOverwrite (dict "requests" $requests "limits" $limits) .resources) -}}
{{- end -}}

{{/* A size, such as 1GiB, 500MB, 1536Mi, or a number of bytes, in MiB, rounded up. */}}
{{- define "load-watcher.mebibytes" -}}
{{- if kindIs "string" . -}}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?" (trim .) -}}
{{- $unit := trimPrefix $number (trim .) | trim | lower | trimSuffix "b" -}}
{{- $factors := dict "" 1 "k" 1000 "ki" 1024 "m" 1000000 "mi" 1048576 "g" 1000000000 "gi" 1073741824 "t" 1000000000000 "ti" 1099511627776 -}}
{{- if or (not $number) (not (hasKey $factors $unit)) }}{{ fail (printf "%q is not a size such as 1536Mi" .) }}{{ end -}}
{{- divf (mulf (float64 $number) (get $factors $unit)) 1048576 | ceil | int64 -}}
{{- else -}}
{{- divf (float64 .) 1048576 | ceil | int64 -}}
{{- end -}}
{{- end -}}
