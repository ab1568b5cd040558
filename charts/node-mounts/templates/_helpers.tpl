{{- /* The name is fixed, not the release's: commands and alerts name ds/datalayer-node-mounts. */ -}}
{{- define "node-mounts.fullname" -}}
{{- .Values.fullnameOverride | default "datalayer-node-mounts" -}}
{{- end -}}

{{- define "node-mounts.selector" -}}
app.kubernetes.io/name: node-mounts
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- /* Whether a kind is served whose filesystem is a process: true, or nothing. */ -}}
{{- define "node-mounts.hasKeeper" -}}
{{- if .Values.nodeMountGateway.buckets -}}true{{- end -}}
{{- end -}}

{{- define "node-mounts.keeperSelector" -}}
{{ include "node-mounts.selector" . }}
app.kubernetes.io/component: keeper
{{- end -}}

{{- /* How the agent finds the keeper of its node; empty without one. */ -}}
{{- define "node-mounts.keeper" -}}
{{- if include "node-mounts.hasKeeper" . -}}
{{ .Release.Namespace }}/{{ include "node-mounts.keeperSelector" . | fromYaml | include "node-mounts.selectorText" }}
{{- end -}}
{{- end -}}

{{- /* Labels as the API takes them in a selector. */ -}}
{{- define "node-mounts.selectorText" -}}
{{- $pairs := list -}}
{{- range $name := keys . | sortAlpha -}}
{{- $pairs = append $pairs (printf "%s=%s" $name (get $ $name)) -}}
{{- end -}}
{{- join "," $pairs -}}
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

{{- /* A quantity of Kubernetes in bytes. */ -}}
{{- define "node-mounts.bytes" -}}
{{- $units := dict "" 1.0 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 -}}
{{- $text := . -}}
{{- if not (kindIs "string" .) -}}
{{- $text = printf "%f" (float64 .) -}}
{{- end -}}
{{- $number := regexFind "^[0-9.]+" $text -}}
{{- printf "%.0f" (mulf (float64 $number) (get $units (trimPrefix $number $text))) -}}
{{- end -}}

{{- /*
What the agent may take with so many repositories being fetched, in bytes: `list . 4`. Each is
fetched by up to four processes of git, beside the agent's own 512Mi.
*/ -}}
{{- define "node-mounts.memoryFor" -}}
{{- $git := include "node-mounts.bytes" (index . 0).Values.nodeMountGateway.git.memory -}}
{{- printf "%.0f" (addf 536870912.0 (mulf (index . 1) 4.0 (float64 $git))) -}}
{{- end -}}

{{- /* Bytes as whole mebibytes. */ -}}
{{- define "node-mounts.mebibytes" -}}
{{- printf "%.0fMi" (ceil (divf (float64 .) 1048576.0)) -}}
{{- end -}}

{{- /*
The agent's requests and limits. A limit that is empty is the chart's: what git may take follows
from other values, and an agent whose tenants can bring it to its limit is restarted by them.
*/ -}}
{{- define "node-mounts.agentResources" -}}
{{- $resources := deepCopy (.Values.driver.resources | default dict) -}}
{{- $limits := $resources.limits | default dict -}}
{{- range $name, $limit := deepCopy $limits -}}
{{- if eq (toString $limit) "" -}}
{{- if eq $name "memory" -}}
{{- $_ := set $limits $name (include "node-mounts.mebibytes" (include "node-mounts.memoryFor" (list $ (ternary 4 0 $.Values.nodeMountGateway.repositories)))) -}}
{{- else -}}
{{- $_ := unset $limits $name -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $resources -}}
{{- toYaml $resources -}}
{{- end -}}
{{- end -}}

{{- /* The memory limit that somebody has set, in bytes; empty without one. */ -}}
{{- define "node-mounts.setMemoryLimit" -}}
{{- $limits := (.Values.driver.resources | default dict).limits | default dict -}}
{{- if $limits.memory -}}
{{- include "node-mounts.bytes" $limits.memory -}}
{{- end -}}
{{- end -}}

{{- /* Where Pods of all DaemonSets run. */ -}}
{{- define "node-mounts.placement" -}}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
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
    kubernetes.io/metadata.name: {{ . | quote }}
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

{{- /*
Everywhere but where nodes are trusted: their links, the metadata services of clouds, the nodes and the
API server as far as the values tell. As NetworkPolicy peers.
*/ -}}
{{- define "node-mounts.elsewhere" -}}
{{- $four := list "169.254.0.0/16" "100.100.100.200/32" "168.63.129.16/32" "192.0.0.192/32" -}}
{{- $six := list "fe80::/10" "fec0::/10" "fd00:ec2::254/128" "fd20:ce::254/128" -}}
{{- range concat .Values.networkPolicy.nodeCidrs (list .Values.apiServer.cidr) -}}
{{- if or (not .) (hasSuffix "/0" .) -}}
{{- else if contains ":" . -}}
{{- $six = append $six . -}}
{{- else -}}
{{- $four = append $four . -}}
{{- end -}}
{{- end -}}
- ipBlock:
    cidr: 0.0.0.0/0
    except:
      {{- toYaml $four | nindent 6 }}
- ipBlock:
    cidr: ::/0
    except:
      {{- toYaml $six | nindent 6 }}
{{- end -}}
