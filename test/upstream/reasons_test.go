package upstream

import "regexp"

// reason is why cases do not pass. It applies to the failures that match both patterns, and has to apply to one.
type reason struct {
	cases string // pattern of the folder, test and part
	err   string // pattern of the failure
	text  string
}

func (r reason) matches(o result) bool {
	return o.err != "" && regexp.MustCompile("^(?:"+r.cases+")$").MatchString(o.name()) && regexp.MustCompile(r.err).MatchString(o.err)
}

// reasons are grouped: differences that the documentation states, then tests that cannot use the public interface. CoreDNS's
// program fails those of the second group in this harness, too, unless the reason says otherwise.
var reasons = []reason{
	{`test TestACLAuthorizesAutopathExpandedName/autopath_expanded_protected_query`, `got rcode SERVFAIL, want REFUSED`,
		"*autopath* skips candidates that fail and answers SERVFAIL if none has data; in CoreDNS the refusal of *acl* is the answer. The protected name is not answered in either. README of *autopath*."},
	{`test TestACMEDNS01CertificateManagement`, `invalid tls: want a certificate and a key`,
		"*tls* does not request certificates by ACME: its README."},
	{`test TestChaos`, `Expected version to be CoreDNS-`,
		"*chaos* answers with the name and version of the program."},
	{`test (TestLookupAutoPathErratic|TestAutoPathErraticNotLoaded)`, `invalid source @erratic`,
		"*autopath* takes search lists of *kubernetes* and of files. *erratic* is a plugin for tests."},
	{`test TestMetricsSeveralBlocs`, `expected 1, got 0`,
		"*cache* does not store the reply of *whoami*, an empty answer without SOA (RFC 2308 section 5)."},
	{`test TestReadme example.*`, `Unknown directive 'etcd'`,
		"clusterdns has no *etcd*, which needs the library of a database: `lacking` in cmd/clusterdns/program."},
	{`test TestJSONLoggingProcess/(extra-args|invalid-format)`, `expected exit 1, got exit status 2`,
		"An invalid command line ends the program with code 2, in one line of text; a configuration that cannot be served with code 1."},
	{`plugin/kubernetes TestMultiClusterServeDNS dns-version.cluster.local. TXT`, `has "1.0.0"`,
		"`dns-version` in a zone of a clusterset is that of the Multicluster specification, 1.0.0: README of *kubernetes*."},
	{`plugin/kubernetes TestMultiClusterServeDNS pod.cluster.local. A`, `rcode is "NXDOMAIN"`,
		"A zone of a clusterset has no names of pods (KEP-1645), so `pod` does not exist."},
	{`plugin/kubernetes TestServeNamespaceDNS svc1.nsnoexist.svc.cluster.local. A`, `TTL of 300, but has 5`,
		"The test ignores the result of this comparison: CoreDNS's answer has TTL 5 too, the default of `ttl`."},
	{`plugin/kubernetes TestReverse 99.0.0.10.in-addr.arpa. PTR`, `contained 1 results, 2 expected`,
		"A PTR record has an endpoint as target only if its Service exists. The test's connection has no Service svc2. README of *kubernetes*."},
	{`plugin/kubernetes TestKubernetes(AXFR|MultiClusterAXFR|IXFRFallback)`, `Record 3, expected`,
		"The test compares the order of the records, which RFC 5936 section 2.2 leaves open. test/differential compares transfers."},
	{`plugin/kubernetes TestServeDNSApex cluster.local. NS`, `contained 0 results, 1 expected`,
		"The test sets 127.0.0.1 as an address of the name server. A server has only its other addresses as NS, in CoreDNS as well (`boundIPs`)."},
	{`plugin/kubernetes TestKubernetesIXFRCurrent`, `Expected only one answer`,
		"The test sets the serial of the zone to 3. The program's serial is the time of the last change."},
	{`plugin/cache TestSpoof`, `i/o timeout`,
		"The test's upstream replies with another question. *forward* drops this reply and waits for the right one; in CoreDNS it ends the query: README of *forward*."},

	{`test TestDynUpdateKeaLifecycle`, `Kea DHCP-DDNS is not installed`,
		"Needs the DHCP server Kea."},
	{`test TestJSONLoggingProcess/(serve|quiet|signal-shutdown|text-default)`, `process failed`,
		"The test reloads and stops a server of its own process, with a hook of caddy."},
	{`test TestMetricsRewriteRequestSize`, `.`,
		"The test adds up metrics of two servers in one process."},
	{`test TestReload(TwoServerBlocks)?UnreadyPlugin`, `Unknown directive 'unready`,
		"The test registers a plugin of its own in the process."},
	{`test TestMultiZoneBlockConfigs`, `reflect\.Value\.Type on zero Value|reflect`,
		"The test reads unexported fields of caddy's instance."},
	{`plugin/cache TestCacheADBitPrefetchRequestsAD`, `sets the clock|percentage|timed out`,
		"The test sets the prefetch percentage 100, where a Corefile has 10 to 90, and the clock of CoreDNS's cache."},
	{`plugin/cache .*`, `unsupported: the test sets the clock`,
		"The test sets the clock of CoreDNS's cache, most by a minute or more. A program has no option for that."},
	{`plugin/cache TestCacheServfailOn(Timeout|CanceledRequest)`, `expected (SERVFAIL from backend|an error from the canceled request)`,
		"The test expects the error that the Go method returns for a handler without a reply, or for a canceled context. A client receives SERVFAIL."},
	{`plugin/cache TestCacheWildcardMetadata`, `nil pointer`,
		"The test reads entries of CoreDNS's cache and metadata of a Go context."},
	{`plugin/cache TestResponseWithDNSSEC`, `i/o timeout`,
		"The test's upstream replies with another question and without the response flag. *forward* waits for the answer to the query."},
	{`plugin/cache TestCachePassesNonQueryToNext`, `did not reach the next handler`,
		"The message is an UPDATE, which is not forwarded."},
	{`plugin/cache TestCacheBypassesMutableZones`, `mutable queries used cache`,
		"The test sets the zones that *dynupdate* reports at the start. Their answers are tested in `test` (TestDynUpdatePersistentWire)."},
	{`plugin/cache TestServeStaleFailureRecheck(Immediate|RejectsInvalidRefresh)/.*`, `expected primed cache item`,
		"The test reads entries of CoreDNS's cache."},
	{`plugin/forward (TestForwardDoQIntegration|TestForwardTLSHandshakeRetry/.*|TestProxyHTTPS)`, `.`,
		"The test passes the certificate of its server to CoreDNS's proxy by a Go method. The program refuses an unknown certificate."},
	{`plugin/forward (TestForward_Regression_NoBusyLoop|TestForward_DefaultConnectAttemptCap)/.*`, `span|connect attempts`,
		"The test counts attempts by the spans of a tracer in its process."},
	{`plugin/forward TestForwardDoesNotRetryLocalPackError`, `string exceeded 255 bytes`,
		"The test's query cannot be packed, so no client can send it."},
	{`plugin/forward (TestHealthMaxFails|TestAllUpstreamsDown)`, `i/o timeout`,
		"The test reads the count of failures of CoreDNS's proxy, whose timeouts it sets to 10 ms by Go methods."},
	{`plugin/autopath TestAutoPathNilMsgFromNext`, `i/o timeout`,
		"The next plugin of the test writes no reply. An upstream that does not reply is a failure of *forward*."},
}
