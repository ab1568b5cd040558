{{- /*
What the schema cannot say. Each refusal is one sentence with what to do. daemonset.yaml includes it.
*/ -}}
{{- define "node-mounts.check" -}}
{{- include "node-mounts.checkServed" . -}}
{{- $gateway := .Values.nodeMountGateway -}}
{{- if not $gateway.enabled -}}
{{- fail "there is nothing to run: set nodeMountGateway.enabled=true and nodeMountGateway.sharedFilesystemClaim; to take the agents away, uninstall the release (mounts that stand stay until their Pods' agents are back, so revoke first)" -}}
{{- end -}}
{{- if not $gateway.sharedFilesystemClaim -}}
{{- fail "nodeMountGateway.enabled needs nodeMountGateway.sharedFilesystemClaim: name the ReadWriteMany claim, in the release's namespace, that holds the folders to grant" -}}
{{- end -}}
{{- include "node-mounts.checkPaths" . -}}
{{- include "node-mounts.checkMemory" . -}}
{{- include "node-mounts.checkBuckets" . -}}
{{- range $name, $actions := dict "agents" .Values.admission.agents.actions "grants" .Values.admission.grants.actions "pods" .Values.admission.pods.actions -}}
{{- if and (has "Deny" $actions) (has "Warn" $actions) -}}
{{- fail (printf "admission.%s.actions has Deny and Warn: a denied request needs no warning, so name one of them" $name) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.monitoring.prometheusRule (not (hasPrefix "http" .Values.monitoring.runbookBaseUrl)) -}}
{{- fail "monitoring.prometheusRule needs monitoring.runbookBaseUrl: say where docs/runbooks can be read" -}}
{{- end -}}
{{- end -}}

{{- /*
What the agent of this release does not serve. A line goes when the agent learns it.
*/ -}}
{{- define "node-mounts.checkServed" -}}
{{- $gateway := .Values.nodeMountGateway -}}
{{- $unserved := dict -}}
{{- $_ := set $unserved "driver.gatewayOnly=false" (not .Values.driver.gatewayOnly) -}}
{{- $_ := set $unserved "driver.allowInsecureRelay" .Values.driver.allowInsecureRelay -}}
{{- $_ := set $unserved "relay" (or .Values.relay.host .Values.relay.cidr .Values.relay.namespace .Values.relay.podSelector) -}}
{{- $_ := set $unserved "nodeMountGateway.localBridges" $gateway.localBridges -}}
{{- range $name := keys $unserved | sortAlpha -}}
{{- if get $unserved $name -}}
{{- fail (printf "%s is not served by this release yet: leave it at its default" $name) -}}
{{- end -}}
{{- end -}}
{{- /* This one stays when bridges are served. */ -}}
{{- range $name := list "localBridges" "buckets" -}}
{{- if and (get $gateway $name) (not $gateway.credentials) -}}
{{- fail (printf "nodeMountGateway.%s needs nodeMountGateway.credentials: a grant of that kind names a Secret" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /*
What the agent would refuse to start on, and a limit that one tenant's process could end all others by.
*/ -}}
{{- define "node-mounts.checkBuckets" -}}
{{- $gateway := .Values.nodeMountGateway -}}
{{- if $gateway.buckets -}}
{{- if regexMatch "(^|:)0+(:|$)" $gateway.owner -}}
{{- fail (printf "nodeMountGateway.owner (%s) is root, and nodeMountGateway.buckets gives files to the owner: name somebody else" $gateway.owner) -}}
{{- end -}}
{{- if eq (base $gateway.s3.program) "mount-s3" -}}
{{- if lt (float64 (include "node-mounts.bytes" $gateway.s3.memory)) (mulf 683.0 1048576.0) -}}
{{- fail (printf "nodeMountGateway.s3.memory (%s) is less than mount-s3 takes: give it 683Mi or more" $gateway.s3.memory) -}}
{{- end -}}
{{- if $gateway.s3.proxy -}}
{{- fail "nodeMountGateway.s3.proxy is not used by mount-s3: leave one of them at its default" -}}
{{- end -}}
{{- end -}}
{{- if ((.Values.keeper.resources | default dict).limits | default dict).memory -}}
{{- fail "keeper.resources.limits.memory would end the processes of all mounts for one of them: leave it out, and limit each by nodeMountGateway.s3.memory" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /*
With a limit that one repository can reach, any tenant can restart the agent of a node. One that four
at once can reach is told in NOTES.txt.
*/ -}}
{{- define "node-mounts.checkMemory" -}}
{{- if and .Values.nodeMountGateway.repositories (lt (float64 (include "node-mounts.bytes" .Values.nodeMountGateway.git.memory)) (mulf 128.0 1048576.0)) -}}
{{- fail (printf "nodeMountGateway.git.memory (%s) is less than what hands git its credentials takes: give it 128Mi or more" .Values.nodeMountGateway.git.memory) -}}
{{- end -}}
{{- with include "node-mounts.setMemoryLimit" . -}}
{{- $least := include "node-mounts.memoryFor" (list $ 1) -}}
{{- if and $.Values.nodeMountGateway.repositories (lt (float64 .) (float64 $least)) -}}
{{- fail (printf "driver.resources.limits.memory (%v) is less than one repository may take (%s): leave it empty, raise it, or lower nodeMountGateway.git.memory (%s)" $.Values.driver.resources.limits.memory (include "node-mounts.mebibytes" $least) $.Values.nodeMountGateway.git.memory) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /*
Folders in one another would mix what the agent mounts and removes with what belongs to users or to
kubelet; the agent refuses to start on them.
*/ -}}
{{- define "node-mounts.checkPaths" -}}
{{- $root := clean .Values.nodeMountGateway.root -}}
{{- $shared := clean .Values.nodeMountGateway.sharedFilesystemMountPath -}}
{{- $kubelet := clean .Values.kubeletDir -}}
{{- $pairs := list
  (list "nodeMountGateway.root" $root "nodeMountGateway.sharedFilesystemMountPath" $shared)
  (list "nodeMountGateway.root" $root "kubeletDir" $kubelet)
  (list "nodeMountGateway.sharedFilesystemMountPath" $shared "kubeletDir" $kubelet)
-}}
{{- /* What the container has there, its program among it, would be hidden by the volume; or the node's own would be shared. */ -}}
{{- $taken := list "/bin" "/boot" "/dev" "/etc" "/lib" "/lib64" "/proc" "/sbin" "/sys" "/tmp" "/usr" -}}
{{- range $name, $path := dict "nodeMountGateway.root" $root "nodeMountGateway.sharedFilesystemMountPath" $shared "kubeletDir" $kubelet -}}
{{- range $taken -}}
{{- if hasPrefix (printf "%s/" .) (printf "%s/" $path) -}}
{{- fail (printf "%s (%s) lies in %s, which is the system's: give it a folder of its own, beneath /var or /mnt" $name $path .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.nodeMountGateway.repositories (gt (len $root) 60) -}}
{{- fail (printf "nodeMountGateway.root (%s) is longer than 60 characters: with repositories, sockets lie beneath it, whose names the kernel limits" $root) -}}
{{- end -}}
{{- range $pairs -}}
{{- if or (hasPrefix (printf "%s/" (index . 1)) (printf "%s/" (index . 3))) (hasPrefix (printf "%s/" (index . 3)) (printf "%s/" (index . 1))) -}}
{{- fail (printf "%s (%s) and %s (%s) lie in one another: give each a folder of its own" (index . 0) (index . 1) (index . 2) (index . 3)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
