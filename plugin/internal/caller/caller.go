// Package caller is the EDNS option by which a node's cache tells cluster DNS for whom it asks. It is a
// leaf: bytes, and nothing of sockets, plugins or the cluster.
//
// The option's data is a version, 1; a length and the name of the node; and optionally a length and the zone
// that the node is in:
//
//	+---------+---------+---- ... ----+---------+---- ... ----+
//	| version | length  |  node name  | length  |    zone     |
//	+---------+---------+---- ... ----+---------+---- ... ----+
//
// Each length is one byte, that of a node's name 1 to 253 and that of a zone 1 to 63. The characters are those
// that Kubernetes allows in the names of nodes (a-z, 0-9, - and .) and in the values of labels (letters, digits,
// -, _ and .): both come into logs.
package caller

// Code is the option's code, one of those for local use (RFC 6891 section 9).
const Code = 65313

// version is the first byte of the data.
const version = 1

// The greatest lengths in bytes: of a node's name (RFC 1123 subdomain), of a zone (the value of a label), and
// of the option's data.
const (
	MaxNode = 253
	MaxZone = 63
	MaxData = 1 + 1 + MaxNode + 1 + MaxZone
)

// Append appends the option's data to dst. It fails if the name of the node or the zone can't be one; the
// zone may be empty.
func Append(dst []byte, node, zone string) ([]byte, bool) {
	if node == "" || len(node) > MaxNode || len(zone) > MaxZone || !all(node, ofNode) || !all(zone, ofZone) {
		return dst, false
	}
	dst = append(dst, version, byte(len(node)))
	dst = append(dst, node...)
	if zone != "" {
		dst = append(dst, byte(len(zone)))
		dst = append(dst, zone...)
	}
	return dst, true
}

// Parse returns the name of the node and the zone, which is empty if there is none, as parts of the data.
func Parse(data []byte) (node, zone []byte, ok bool) {
	if len(data) < 2 || data[0] != version {
		return nil, nil, false
	}
	node, rest, ok := take(data[1:], MaxNode, ofNode)
	if !ok || len(rest) == 0 {
		return node, nil, ok
	}
	zone, rest, ok = take(rest, MaxZone, ofZone)
	if !ok || len(rest) != 0 {
		return nil, nil, false
	}
	return node, zone, true
}

// take takes a length, and as many bytes, from the front of b.
func take(b []byte, most int, of func(c byte) bool) (part, rest []byte, ok bool) {
	n := int(b[0])
	if n == 0 || n > most || len(b) < 1+n || !all(b[1:1+n], of) {
		return nil, nil, false
	}
	return b[1 : 1+n], b[1+n:], true
}

func all[T string | []byte](text T, of func(c byte) bool) bool {
	for i := range len(text) {
		if !of(text[i]) {
			return false
		}
	}
	return true
}

func ofNode(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '.'
}

func ofZone(c byte) bool { return ofNode(c) || 'A' <= c && c <= 'Z' || c == '_' }
