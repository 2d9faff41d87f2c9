// Package wire has the wire format of DNS messages (RFC 1035 section 4.1): the header, names, queries, records, the data of records
// and EDNS options. Input is bytes; output is offsets into them, and facts. It is a leaf: it imports no other package of the
// project, no package dns, and has no sockets and no logging. Package dns is the oracle of its tests: messages that this package
// accepts are valid for package dns.
package wire
