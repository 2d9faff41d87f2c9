package dropin

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/coredns/caddy/caddyfile"
)

// The variables of a template.
const (
	clusterDNS      = "__PILLAR__CLUSTER__DNS__"
	localDNS        = "__PILLAR__LOCAL__DNS__"
	dnsServer       = "__PILLAR__DNS__SERVER__"
	upstreamServers = "__PILLAR__UPSTREAM__SERVERS__"
	prometheusAddr  = "__PROMETHEUS__ENDPOINT__"
	prometheusOld   = "__PILLAR__PROMETHEUS__ENDPOINT__" // the name of prometheusAddr before node-local-dns released it
)

var (
	variable     = regexp.MustCompile(`__(PILLAR|PROMETHEUS)__[A-Z]+(__?[A-Z]+)*__`)
	localDNSPort = regexp.MustCompile(`\[?` + localDNS + `\]?:[0-9]+`) // the manual of node-local-dns has brackets for IPv6
)

// check returns an error if a variable of a text, except in a comment, has no value.
func (v values) check(name, text string) error {
	for d := caddyfile.NewDispenser(name, strings.NewReader(text)); d.Next(); {
		for _, found := range variable.FindAllString(d.Val(), -1) {
			if err := v.usable(found); err != nil {
				return fmt.Errorf("%s:%d - %w", name, d.Line(), err)
			}
		}
	}
	return nil
}

// checkImported returns an error if a word of an imported file has a variable.
func checkImported(file string, line int, word string) error {
	if found := variable.FindString(word); found != "" {
		return fmt.Errorf("%s:%d - %s is in an imported file, where variables have no values: write it in the template itself, or a value here", file, line, found)
	}
	return nil
}

// substitute replaces variables by their values. A variable without a value stays if it is in a comment, and is an error
// elsewhere. The numbers of lines do not change.
func (v values) substitute(name, text string) (string, error) {
	if err := v.check(name, text); err != nil {
		return "", err
	}
	if len(v.localIPs) > 0 {
		// Before a port, as in the stock health directive, the variable stands for the first of several addresses.
		first := v.localIPs[0].String()
		text = localDNSPort.ReplaceAllStringFunc(text, func(found string) string {
			return net.JoinHostPort(first, found[strings.LastIndexByte(found, ':')+1:])
		})
	}
	return variable.ReplaceAllStringFunc(text, func(found string) string {
		if v.usable(found) != nil {
			return found
		}
		return v.value(found)
	}), nil
}

func (v values) value(variable string) string {
	switch variable {
	case clusterDNS:
		return v.clusterDNS
	case localDNS:
		return strings.Join(v.localIPs.texts(), " ")
	case upstreamServers:
		if len(v.kubeDNS.Upstreams) > 0 {
			return strings.Join(v.kubeDNS.Upstreams, " ")
		}
		return v.resolvConf
	case prometheusAddr, prometheusOld:
		return v.prometheus
	}
	return "" // dnsServer: localDNS has all addresses
}

// usable returns an error if a variable has no value.
func (v values) usable(variable string) error {
	switch variable {
	case clusterDNS:
		if slices.Contains(v.own.texts(), v.clusterDNS) {
			return fmt.Errorf("%s would be %s, the address of Service %q, on which nodecache answers itself (see -localip, bind and nodelocal), so it would query itself: create a second Service of cluster DNS, such as kube-dns-upstream, and name it with -upstreamsvc",
				variable, v.clusterDNS, v.upstreamSvc)
		}
		if v.clusterDNS == "" {
			return fmt.Errorf("%s is the address of cluster DNS, which the variable %s of the environment has if there is a Service %q in the namespace of this pod when it starts: create it with port 53 and the selector of cluster DNS, or name another with -upstreamsvc",
				variable, serviceVariable(v.upstreamSvc), v.upstreamSvc)
		}
	case localDNS:
		if len(v.localIPs) == 0 {
			return fmt.Errorf("%s is the value of -localip, which is not set", variable)
		}
	case prometheusAddr, prometheusOld:
		if v.prometheus == "" {
			return fmt.Errorf("%s is the value of -prometheus-listen-address, which is empty", variable)
		}
	case dnsServer, upstreamServers:
	default:
		return fmt.Errorf("%s is not a variable of nodecache; the installation of node-local-dns replaces it", variable)
	}
	return nil
}
