{{- /* Changes a Deployment or StatefulSet in place; renders nothing. */}}
{{- define "triptych.workload" }}
{{- $values := .values }}
{{- $name := .object.metadata.name }}
{{- $pod := .object.spec.template.spec }}
{{- if not $values.autoscaling.enabled }}
{{- $_ := set .object.spec "replicas" (dig $name 2 $values.replicas) }}
{{- end }}
{{- if not $values.repository.url }}
{{- $_ := unset $pod "initContainers" }}
{{- $claim := dict "name" "models" "persistentVolumeClaim" (dict "claimName" $values.repository.claim "readOnly" true) }}
{{- $others := list }}
{{- range $pod.volumes }}
{{- if ne .name "models" }}
{{- $others = append $others . }}
{{- end }}
{{- end }}
{{- $_ := set $pod "volumes" (prepend $others $claim) }}
{{- end }}
{{- with $values.imagePullSecrets }}
{{- $_ := set $pod "imagePullSecrets" . }}
{{- end }}
{{- with get $values.nodeSelector $name }}
{{- $_ := set $pod "nodeSelector" . }}
{{- end }}
{{- with get $values.tolerations $name }}
{{- $_ := set $pod "tolerations" (concat (dig "tolerations" list $pod) .) }}
{{- end }}
{{- range concat $pod.containers (dig "initContainers" list $pod) }}
{{- if $values.images.tag }}
{{- $_ := set . "image" (printf "%s:%s" (first (splitList ":" .image)) $values.images.tag) }}
{{- end }}
{{- if $values.images.registry }}
{{- $_ := set . "image" (printf "%s/%s" (trimSuffix "/" $values.images.registry) .image) }}
{{- end }}
{{- if $values.images.pullPolicy }}
{{- $_ := set . "imagePullPolicy" $values.images.pullPolicy }}
{{- end }}
{{- $container := . }}
{{- with get $values.resources .name }}
{{- $_ := set $container "resources" (mergeOverwrite (dig "resources" dict $container) .) }}
{{- end }}
{{- with get $values.arguments .name }}
{{- $_ := set $container "args" (concat $container.args .) }}
{{- end }}
{{- with get $values.env .name }}
{{- $_ := set $container "env" (concat (dig "env" list $container) .) }}
{{- end }}
{{- if eq .name "pull" }}
{{- with get $values.bundles $name }}
{{- $others := list }}
{{- range $container.args }}
{{- if not (hasPrefix "--bundles=" .) }}
{{- $others = append $others . }}
{{- end }}
{{- end }}
{{- $_ := set $container "args" (append $others (printf "--bundles=%s" (join "," .))) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
