{{/* The Corefile of clusterdns. */}}
{{- define "nearside.clusterdns.corefile" -}}
{{- $zones := concat (list .Values.clusterDomain) .Values.multicluster.zones -}}
.:53 {
    errors
    health {
        lameduck 5s
    }
    ready
    {{- if eq .Values.clusterdns.pods "verified" }}
    autopath @kubernetes
    {{- end }}
    kubernetes {{ join " " $zones }} in-addr.arpa ip6.arpa {
        pods {{ .Values.clusterdns.pods }}
        {{- with .Values.multicluster.zones }}
        multicluster {{ join " " . }}
        {{- end }}
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
        {{- if .Values.coherent }}
        coherent
        {{- end }}
        {{- with .Values.clusterdns.snapshot }}
        {{- if .enabled }}
        snapshot /var/lib/clusterdns/records
        {{- if .ready }}
        snapshot_ready
        {{- end }}
        {{- end }}
        {{- end }}
        {{- if .Values.clusterdns.topology }}
        topology
        {{- end }}
    }
    prometheus :9153
    {{- with .Values.clusterdns.maxConnections }}
    fastpath {
        max_connections {{ int . }}
    }
    {{- end }}
    forward . {{ join " " .Values.clusterdns.upstreams }} {
        max_concurrent 1000
    }
    cache 30 {
        disable success {{ join " " $zones }}
        disable denial {{ join " " $zones }}
    }
    loop
    reload
    loadbalance
    import custom/*.override
}
import custom/*.server
{{- with .Values.clusterdns.serverBlocks }}
{{ . | trimSuffix "\n" }}
{{- end }}
{{ end -}}

{{/* Whether clusterdns has the volume for snapshots: "true", or nothing. */}}
{{- define "nearside.clusterdns.snapshot" -}}
{{- if regexMatch "(?m)^\\s+snapshot\\s" (.Values.clusterdns.corefile | default (include "nearside.clusterdns.corefile" .)) }}true{{ end -}}
{{- end -}}

{{/* The option kernel of nodecache: off, on or force. YAML reads on and off without quotes as booleans. */}}
{{- define "nearside.nodecache.kernel" -}}
{{- $value := toString .Values.nodecache.kernel -}}
{{ get (dict "true" "on" "false" "off") $value | default $value }}
{{- end -}}

{{/* The template of nodecache's Corefile. */}}
{{- define "nearside.nodecache.corefile" -}}
{{- $kernel := include "nearside.nodecache.kernel" . -}}
{{- $bound := ne .Values.proxyMode "cilium" -}}
{{- $address := ternary "__PILLAR__LOCAL__DNS__" "" $bound -}}
{{ .Values.clusterDomain }}:53 {
    errors
    {{- if $bound }}
    health {{ $address }}:8080
    {{- else }}
    health :8080 {
        lameduck 5s
    }
    {{- end }}
    ready {{ $address }}:8181 {
        monitor continuously
    }
    {{- if not $bound }}
    nodelocal {$POD_IP} {
        setup none
    }
    {{- end }}
    {{- if .Values.nodecache.autopath }}
    autopath @nodelocal
    {{- end }}
    cache {
        success 9984 30
        denial 9984 5
    }
    reload
    loop
    {{- if $bound }}
    bind __PILLAR__LOCAL__DNS__
    {{- end }}
    {{- if ne $kernel "off" }}
    fastpath {
        kernel {{ $kernel }}
    }
    {{- end }}
    forward . __PILLAR__CLUSTER__DNS__ {
        force_tcp
        {{- if .Values.coherent }}
        coherent
        {{- end }}
    }
    prometheus :9253
}
{{- range list "in-addr.arpa" "ip6.arpa" }}
{{ . }}:53 {
    errors
    cache 30
    reload
    loop
    {{- if $bound }}
    bind __PILLAR__LOCAL__DNS__
    {{- end }}
    {{- if ne $kernel "off" }}
    fastpath {
        kernel {{ $kernel }}
    }
    {{- end }}
    forward . __PILLAR__CLUSTER__DNS__ {
        force_tcp
        {{- if $.Values.coherent }}
        coherent
        {{- end }}
    }
    prometheus :9253
}
{{- end }}
.:53 {
    errors
    cache 30
    reload
    loop
    {{- if $bound }}
    bind __PILLAR__LOCAL__DNS__
    {{- end }}
    {{- if ne $kernel "off" }}
    fastpath {
        kernel {{ $kernel }}
    }
    {{- end }}
    forward . __PILLAR__UPSTREAM__SERVERS__
    prometheus :9253
    import custom/*.override
}
import custom/*.server
{{- with .Values.nodecache.serverBlocks }}
{{ . | trimSuffix "\n" }}
{{- end }}
{{ end -}}
