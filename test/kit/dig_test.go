package kit

import (
	"reflect"
	"testing"
)

// digOutput has replies in the forms of dig, kdig and drill.
const digOutput = `;; Got answer:
;; ->>HEADER<<- opcode: QUERY, status: NOERROR, id: 1
;; flags: qr aa; QUERY: 1, ANSWER: 1, AUTHORITY: 0, ADDITIONAL: 2

;; OPT PSEUDOSECTION:
; EDNS: version: 0, flags:; udp: 1232
;; QUESTION SECTION:
;_a._tcp.test.		IN SRV

;; ANSWER SECTION:
_a._tcp.test.	5	IN	SRV	0 1  53 a.test.

;; ADDITIONAL SECTION:
a.test.		5	IN	A	192.0.2.1

;; Query time: 0 msec
;; ->>HEADER<<- opcode: QUERY; status: NXDOMAIN; id: 2
;; AUTHORITY SECTION:
test.           	5	IN	SOA	ns.test. mail.test. 1 2 3 4 5

;; Received 80 B
;; ->>HEADER<<- opcode: QUERY, rcode: SERVFAIL, id: 3
;; ANSWER SECTION:

;; MSG SIZE  rcvd: 30
`

// TestParseDig parses replies of three tools, and output without a reply.
func TestParseDig(t *testing.T) {
	want := []DigReply{
		{Status: "NOERROR", Answer: []DigRecord{{"_a._tcp.test.", "5", "SRV", "0 1 53 a.test."}}, Additional: []DigRecord{{"a.test.", "5", "A", "192.0.2.1"}}},
		{Status: "NXDOMAIN", Authority: []DigRecord{{"test.", "5", "SOA", "ns.test. mail.test. 1 2 3 4 5"}}},
		{Status: "SERVFAIL"},
	}
	if got := ParseDig(digOutput); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := ParseDig(";; communications error to 127.0.0.1#53: timed out\n"); len(got) > 0 {
		t.Errorf("got %+v without a reply", got)
	}
}
