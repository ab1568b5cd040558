{{- /* The name is fixed, not the release's: commands and alerts name ds/datalayer-node-mounts. */ -}}
{{- define "node-mounts.fullname" -}}
{{- .Values.fullnameOverride | default "datalayer-node-mounts" -}}
{{- end -}}

{{- define "node-mounts.selector" -}}
app.kubernetes.io/name: node-mounts
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "node-mounts.labels" -}}
{{ include "node-mounts.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: node-mounts
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "node-mounts.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ printf "%s@%s" .repository .digest }}
{{- else -}}
{{ printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The three keys on Pods, as package grant makes them. */ -}}
{{- define "node-mounts.label" -}}{{ .Values.nodeMountGateway.annotationPrefix }}/node-mount-gateway{{- end -}}
{{- define "node-mounts.grant" -}}{{ include "node-mounts.label" . }}-mounts{{- end -}}
{{- define "node-mounts.ready" -}}{{ include "node-mounts.label" . }}-ready{{- end -}}

{{- define "node-mounts.agentUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "node-mounts.fullname" . }}
{{- end -}}

{{- /*
ValidatingAdmissionPolicy is v1 since 1.30. A cluster lists its kinds; rendering without one knows its
version alone.
*/ -}}
{{- define "node-mounts.hasPolicies" -}}
{{- if or (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) -}}
true
{{- end -}}
{{- end -}}

{{- /* Where Pods of both DaemonSets run. */ -}}
{{- define "node-mounts.placement" -}}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The policies look at the namespace that is served, or at all. */ -}}
{{- define "node-mounts.policyNamespace" -}}
{{- with .Values.nodeMountGateway.namespace -}}
namespaceSelector:
  matchLabels:
    kubernetes.io/metadata.name: {{ . }}
{{- else -}}
namespaceSelector: {}
{{- end -}}
{{- end -}}

{{- /* The AppArmor profile is a field since 1.30, and an annotation before. */ -}}
{{- define "node-mounts.hasProfileField" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version -}}true{{- end -}}
{{- end -}}

{{- /* What the values' own podAnnotations win over. */ -}}
{{- define "node-mounts.podAnnotations" -}}
kubectl.kubernetes.io/default-container: driver
{{- if .Values.monitoring.annotations }}
prometheus.io/scrape: "true"
prometheus.io/port: {{ .Values.driver.healthPort | quote }}
prometheus.io/path: /metrics
{{- end }}
{{- if not (include "node-mounts.hasProfileField" .) }}
container.apparmor.security.beta.kubernetes.io/driver: unconfined
{{- end }}
{{- end -}}
