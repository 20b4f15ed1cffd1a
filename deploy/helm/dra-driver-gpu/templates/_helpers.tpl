{{- /* Names */ -}}
{{- define "dra-driver-gpu.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- /* At most 40 characters: what the components append must fit into a name of 63. */ -}}
{{- define "dra-driver-gpu.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "dra-driver-gpu.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "dra-driver-gpu.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end -}}

{{- /* Labels of every object */ -}}
{{- define "dra-driver-gpu.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "dra-driver-gpu.selectorLabels" . }}
{{- end -}}

{{- /* Labels by which a component's pods are selected: they never change */ -}}
{{- define "dra-driver-gpu.selectorLabels" -}}
{{- if .Values.selectorLabelsOverride -}}
{{- toYaml .Values.selectorLabelsOverride -}}
{{- else -}}
app.kubernetes.io/name: {{ include "dra-driver-gpu.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}
{{- end -}}

{{- /* The same as one argument of kubectl */ -}}
{{- define "dra-driver-gpu.selector" -}}
{{- $pairs := list -}}
{{- range $key, $value := include "dra-driver-gpu.selectorLabels" . | fromYaml -}}
{{- $pairs = append $pairs (printf "%s=%s" $key $value) -}}
{{- end -}}
{{- join "," $pairs -}}
{{- end -}}

{{- define "dra-driver-gpu.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default (printf "v%s" .Chart.AppVersion)) -}}
{{- end -}}
{{- end -}}

{{- define "dra-driver-gpu.mpsImage" -}}
{{- $own := .Values.mps.image -}}
{{- if $own.digest -}}
{{- printf "%s@%s" .Values.image.repository $own.digest -}}
{{- else if $own.tag -}}
{{- printf "%s:%s" .Values.image.repository $own.tag -}}
{{- else -}}
{{- include "dra-driver-gpu.image" . -}}
{{- end -}}
{{- end -}}

{{- /* Directories of the host: clean, so that `/data/kubelet/` and `/data/kubelet` are one */ -}}
{{- define "dra-driver-gpu.pluginsDir" -}}
{{- clean (.Values.kubeletPlugin.kubeletPluginsDirectoryPath | default (printf "%s/plugins" .Values.kubeletRoot)) -}}
{{- end -}}

{{- define "dra-driver-gpu.registrarDir" -}}
{{- clean (.Values.kubeletPlugin.kubeletRegistrarDirectoryPath | default (printf "%s/plugins_registry" .Values.kubeletRoot)) -}}
{{- end -}}

{{- define "dra-driver-gpu.mpsDir" -}}
{{- clean (printf "%s/mps" .Values.runRoot) -}}
{{- end -}}

{{- /* Whether a node has this vendor's GPUs; takes the vendor's values */ -}}
{{- define "dra-driver-gpu.vendorAffinity" -}}
{{- if .nodeLabels -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- range .nodeLabels }}
      - matchExpressions:
          - {key: {{ . | quote }}, operator: In, values: ["true"]}
      {{- end }}
{{- end -}}
{{- end -}}

{{- /* What a process without a need for the host runs with */ -}}
{{- define "dra-driver-gpu.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- /* Makes an object one of the check before an uninstall; takes its place in the order, and when Helm removes it */ -}}
{{- define "dra-driver-gpu.uninstallHook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ index . 0 | quote }}
helm.sh/hook-delete-policy: {{ index . 1 }}
{{- end -}}
