package upstream

import (
	"regexp"
	"slices"
	"strings"
)

// reason is why cases do not pass. It applies to the failures that match both patterns, and has to apply to one.
type reason struct {
	cases string // pattern of the folder, test and part
	err   string // pattern of the failure
	text  string
}

func (r reason) matches(o result) bool {
	return o.err != "" && regexp.MustCompile("^(?:"+r.cases+")$").MatchString(o.name()) && regexp.MustCompile(r.err).MatchString(o.err)
}

var reasons = slices.Concat(differences, unusable)

// differences are those that the documentation states.
var differences = []reason{
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
	{`plugin/kubernetes TestKubernetes(AXFR|IXFRFallback)`, transferred(weights, headless),
		"A transfer has the SRV records of answers: with their weights, and also at the name of a headless Service. README of *kubernetes*."},
	{`plugin/kubernetes TestKubernetesMultiClusterAXFR`, transferred(weights, headless, clusterNames),
		"In a transfer, too, the name of an imported endpoint has the ID of its cluster, as in the answers of both programs: test/differential. SRV records as in the transfers above."},
	{`plugin/kubernetes TestServeDNSApex cluster.local. NS`, `contained 0 results, 1 expected`,
		"The test sets 127.0.0.1 as an address of the name server. A server has only its other addresses as NS, in CoreDNS as well (`boundIPs`)."},
	{`plugin/cache TestSpoof`, `i/o timeout`,
		"The test's upstream replies with another question. *forward* drops this reply and waits for the right one; in CoreDNS it ends the query: README of *forward*."},
	{`plugin/forward TestSetupResolvconf stanza #2`, `accepted true, want false`,
		"nodecache starts with a file that names no server, and answers SERVFAIL until it does: docs/configuration.md, template of nodecache. clusterdns refuses it, as CoreDNS."},
	{`plugin/forward TestForwardTLSHandshakeRetry/single_attempt`, `no answer in time dot_test\.go:\d+: stalled connection was not closed$`,
		"The attempt ends after `read_timeout`, by default 2 s, and with it the query, with SERVFAIL. The handshake continues for up to 3.5 s in all, for other queries. The test expects its end within a second."},
}

// unusable are those of tests that cannot use the public interface. CoreDNS's program fails them in this harness, too.
var unusable = []reason{
	{`test TestDynUpdateKeaLifecycle`, `Kea DHCP-DDNS is not installed`,
		"Needs the DHCP server Kea."},
	{`test TestMetricsRewriteRequestSize`, `metrics_test\.go:\d+: Expected all requests to go to le=100 bucket$`,
		"The test expects that the counters of a process continue in its second server. Each server is a process here, and counts 5 requests."},
	{`test TestReload(TwoServerBlocks)?UnreadyPlugin`, `Unknown directive 'unready`,
		"The test registers a plugin of its own in the process."},
	{`test TestMultiZoneBlockConfigs`, `reflect\.Value\.Type on zero Value|reflect`,
		"The test reads unexported fields of caddy's instance."},
	// Tests that set the clock of CoreDNS's cache, or read its entries.
	{`plugin/cache TestCacheADBitPrefetchRequestsAD`, `percentage|timed out`,
		"The test sets the prefetch percentage 100, where a Corefile has 10 to 90. " + inPluginCache + "TestFlagsOfRefresh: prefetch 1."},
	inCache("TestCacheADBitStaleVerify", "TestFlagsOfRefresh: serve_stale 1h verify"),
	inCache("TestServeFromStaleCache", "TestServeStale: until the configured age"),
	inCache("TestServeFromStaleCacheResponseTTL/legacy_default", "TestServeStale: immediate fetches for each client after a failure"),
	inCache("TestServeFromStaleCacheResponseTTL/(immediate_positive|exact_expiry)", "TestServeStale: immediate with a TTL and a pause after a failure"),
	inCache("TestServeFromStaleCacheResponseTTL/immediate_negative", "TestCoreDNSCases: a configured TTL of a stale denial"),
	inCache("TestServeFromStaleCacheResponseTTL/verify_failure", "TestServeStale: verify pauses after a failure"),
	inCache("TestServeFromStaleCacheResponseTTL/stale_ttl_overrides_keepttl", "TestServeStale: a configured TTL overrides keepttl"),
	inCache("TestServeFromStaleCacheResponseTTL/fresh_response_is_unchanged", "TestCoreDNSCases: a configured TTL does not change a fresh answer"),
	inCache("TestServeFromStaleCacheFetchVerify", "TestServeStale: verify fetches first"),
	inCache("TestServeFromStaleCacheFetchVerifyTimeout(FastUpstream)?", "TestVerifyTimeout: slow"),
	inCache("TestServeFromStaleCacheFetchVerifyTimeoutUncacheableResponse", "TestCoreDNSCases: verify with a timeout serves a denial that cannot be cached"),
	inCache("TestServeFromStaleCacheFetchVerifyTimeoutMetadataIsolation", "TestProperties_Background: background", "TestVerifyWithoutClient: serve_stale 1h verify 1s"),
	inCache("TestNegativeStaleMaskingPositiveCache", "TestServeStale: prefer_positive prefers an answer to a later denial", "TestServeStale: prefer_positive replaces a denial by a later one"),
	inCache("TestCacheKeepTTL", "TestBehaviour: TTLs are not decremented with keepttl"),
	inCache("TestPreferPositiveVerifyKeepsStaleOnNonAnswers/(NXDOMAIN|NODATA)", "TestServeStale: prefer_positive with verify"),
	inCache("TestPreferPositiveVerifyKeepsStaleOnNonAnswers/SERVFAIL", "TestServeStale: verify fetches first"),
	inCache("TestPreferPositiveVerifyKeepsStaleOnNonAnswers/NOTIMP", "TestCoreDNSCases: prefer_positive with verify prefers a stale answer to NOTIMP"),
	inCache("TestPreferPositiveVerifyRejectsInvalidFreshAnswers/blocking/truncated", "TestServeStale: prefer_positive with verify"),
	inCache("TestPreferPositiveVerifyRejectsInvalidFreshAnswers/bounded/truncated", "TestCoreDNSCases: prefer_positive with verify and a timeout prefers it to a truncated reply"),
	inCache("TestPreferPositiveVerifyRejectsInvalidFreshAnswers/(blocking|bounded)/expired_RRSIG", "TestInvalidRefresh: serve_stale_policy prefer_positive"),
	inCache("TestPrefetch/hits.reset.example.org.", "TestPrefetch: popular, at the last tenth"),
	inCache("TestPrefetch/short.ttl.example.org.", "TestPrefetch: a short TTL"),
	inCache("TestPrefetch/no.prefetch.example.org.", "TestPrefetch: never"),
	inCache("TestPrefetch/(do|cd).prefetch.example.org.", "TestFlagsOfRefresh: prefetch 1"),
	inCache("TestPrefetchDedup/serve_stale", "TestSingleFlightOfExpired: immediate"),
	inCache("TestPrefetchDedup/prefetch", "TestPrefetchJoined: expires during a prefetch"),
	inCache("TestServeStaleFailureRecheckVerify", "TestServeStale: verify pauses after a failure"),
	inCache("TestServeStaleFailureRecheckVerifyTimeoutCoalesces", "TestVerifyOneAtATime: recheck", "TestServeStale: verify pauses after a failure"),
	inCache("TestServeStaleVerifyTimeoutCoalescesWithoutFailureRecheck", "TestVerifyTimeout: slow"),
	inCache("TestServeStaleFailureRecheckDisabledPreservesVerifyBehavior", "TestServeStale: verify fetches first"),
	inCache("TestServeStaleFailureRecheckImmediate/positive", "TestServeStale: immediate with a TTL and a pause after a failure"),
	inCache("TestServeStaleFailureRecheckImmediate/negative", "TestCoreDNSCases: immediate pauses after a failure to refresh a denial"),
	inCache("TestServeStaleFailureRecheckRejectsInvalidRefresh/immediate/truncated", "TestCoreDNSCases: immediate pauses after a truncated reply"),
	inCache("TestServeStaleFailureRecheckRejectsInvalidRefresh/verify/truncated", "TestCoreDNSCases: verify pauses after a truncated reply"),
	inCache("TestServeStaleFailureRecheckRejectsInvalidRefresh/(immediate|verify)/expired_RRSIG", "TestInvalidRefresh: expired signature"),
	inCache("TestServeStaleFailureRecheckRejectsInvalidRefresh/(immediate|verify)/mismatched_question", "TestInvalidRefresh: another question"),
	{`plugin/cache TestCacheServfailOn(Timeout|CanceledRequest)`, `expected (SERVFAIL from backend|an error from the canceled request)`,
		"The test expects the error that the Go method returns for a handler without a reply, or for a canceled context. A client receives SERVFAIL. " + inPluginCache +
			"TestBehaviour: failures are cached for 5 seconds; TestSingleFlight: the leader cancels."},
	{`plugin/cache TestCacheWildcardMetadata`, `nil pointer`,
		"The test reads entries of CoreDNS's cache and metadata of a Go context. " + inPluginCache + "TestWildcard: wildcard."},
	{`plugin/cache TestResponseWithDNSSEC`, `i/o timeout`,
		"The test's upstream replies with another question and without the response flag. *forward* waits for the answer to the query."},
	{`plugin/cache TestCachePassesNonQueryToNext`, `did not reach the next handler`,
		"The message is an UPDATE. A server accepts it only with *dynupdate* in the block, and answers NOTIMP otherwise, in CoreDNS as well. " + inPluginCache + "TestBypass: update."},
	{`plugin/cache TestCacheBypassesMutableZones`, `mutable queries used cache`,
		"The test sets the zones that *dynupdate* reports at the start. Their answers are tested in `test` (TestDynUpdatePersistentWire)."},
	{`plugin/forward TestForwardTLSHandshakeRetry/caller_deadline`, `rcode = 2, error = read udp .*: i/o timeout, want a successful retry`,
		"A client does not send its deadline, 0.5 s here: the program repeats the handshake after 3.5 s, CoreDNS's after 2.5 s."},
	{`plugin/forward TestForwardTLSHandshakeRetry/caller_canceled`, `rcode = 0, error = <nil>, want SERVFAIL and an error`,
		"A client cannot cancel a query: the program answers it after the retry."},
	{`plugin/forward (TestForward_Regression_NoBusyLoop|TestForward_DefaultConnectAttemptCap)/.*`, `span|connect attempts`,
		"The test counts attempts by the spans of a tracer in its process. " + inPluginForward +
			"TestInTime: attempts 0; TestInTime: attempts 1; TestInTime: attempts 2; TestInTime: attempts by default."},
	{`plugin/forward TestForwardDoesNotRetryLocalPackError`, `string exceeded 255 bytes`,
		"The test's query cannot be packed, so no client can send it."},
	{`plugin/forward TestHealthMaxFails`, `i/o timeout`,
		"The test reads the count of failures of CoreDNS's proxy, whose timeouts it sets to 10 ms by Go methods. " + inPluginForward + "TestDown: 5 fails; TestDown: 1 fail."},
	{`plugin/forward TestAllUpstreamsDown`, `i/o timeout`,
		"The test makes CoreDNS's proxies fail checks by Go methods. " + inPluginForward + "TestAllDown: failfast; TestAllDown: trial."},
	{`plugin/autopath TestAutoPathNilMsgFromNext`, `i/o timeout`,
		"The next plugin of the test writes no reply. An upstream that does not reply is a failure of *forward*."},
}

// inCache returns the reason for a test that sets the clock of CoreDNS's cache, or reads its entries, with the tests of plugin/cache
// that have its cases.
func inCache(cases string, covered ...string) reason {
	return reason{`plugin/cache ` + cases, `unsupported: the test sets the clock|expected primed cache item`,
		"The test sets the clock of CoreDNS's cache, or reads its entries. " + inPluginCache + strings.Join(covered, "; ") + "."}
}

// The list of nearside's tests at the end of a reason: functions and parts of names of subtests.
const (
	inPluginCache   = "In plugin/cache: "
	inPluginForward = "In plugin/forward: "
)

// Patterns of the differences between transfers.
const (
	weights      = `without \S*svc-dual-stack\S+ SRV 0 100 80 \S+|with \S*svc-dual-stack\S+ SRV 0 50 80 \S+`
	headless     = `with hdls1\S+ SRV 0 16 80 \S+`
	clusterNames = `without [\w-]+\.hdls\w+\.testns\S+ A+ \S+|with [\w-]+\.cluster1\.hdls\w+\.testns\S+ A+ \S+|` +
		`without _http\._tcp\.hdls1\S+ SRV 0 16 80 [\w-]+\.hdls1\S+|with _http\._tcp\.hdls1\S+ SRV 0 16 80 [\w-]+\.cluster1\.hdls1\S+`
)

// transferred returns the pattern of a failure with no other differences than these.
func transferred(differences ...string) string {
	return `^failed: xfr_test\.go:\d+: transfer(?: (?:` + strings.Join(differences, "|") + `))+$`
}
