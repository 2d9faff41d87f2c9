{{/* Labels of the objects of a program: {"root": $, "name": "clusterdns"}. */}}
{{- define "nearside.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: nearside
{{ include "nearside.release" .root }}
{{- end -}}

{{/* Labels of all objects: the release. */}}
{{- define "nearside.release" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The reference of an image: {"root": $, "image": .Values.clusterdns.image}. Values that the program does not set are those of image. */}}
{{- define "nearside.image" -}}
{{- $repository := .image.repository -}}
{{- with .image.registry | default .root.Values.image.registry }}{{ $repository = printf "%s/%s" . $repository }}{{ end -}}
{{- if .image.digest -}}
{{ $repository }}@{{ .image.digest }}
{{- else -}}
{{ $repository }}:{{ coalesce .image.tag .root.Values.image.tag .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Address families of a Service. */}}
{{- define "nearside.families" -}}
{{- if .Values.dualStack }}
ipFamilyPolicy: PreferDualStack
{{- end }}
{{- end -}}

{{/* Addresses of nodecache: its own, and those of the Service if the mode of kube-proxy permits it. */}}
{{- define "nearside.localips" -}}
{{- $all := .Values.nodecache.localIPs -}}
{{- if ne .Values.proxyMode "ipvs" -}}
{{- $variable := .Values.clusterdns.service.name | upper | replace "-" "_" -}}
{{- $all = append $all (printf "$(%s_SERVICE_HOST)" $variable) -}}
{{- with .Values.nodecache.secondServiceIP }}{{ $all = append $all . }}{{ end -}}
{{- end -}}
{{ join "," $all }}
{{- end -}}

{{/* Addresses that nodecache may have on a node, as CIDRs in a list of YAML. */}}
{{- define "nearside.cidrs" -}}
{{- $all := concat .Values.nodecache.localIPs .Values.networkPolicy.serviceIPs -}}
{{- range $i, $a := $all }}{{ if $i }}, {{ end }}{{ printf "%s/%s" $a (ternary "128" "32" (contains ":" $a)) | quote }}{{ end -}}
{{- end -}}
