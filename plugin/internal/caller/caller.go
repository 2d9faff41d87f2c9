// Package caller has the data of the EDNS option wire.OptionCaller, in which a node's cache sends the name of its node, and
// the node's zone, to cluster DNS. Input and output are bytes. It imports no sockets, no plugins and no other package of the
// project.
//
// The option's data are a version, 1; the name of the node with its length; and optionally the zone of the node with its
// length:
//
//	+---------+---------+---- ... ----+---------+---- ... ----+
//	| version | length  |  node name  | length  |    zone     |
//	+---------+---------+---- ... ----+---------+---- ... ----+
//
// Each length is one byte: 1 to 253 for a node's name, 1 to 63 for a zone. Only characters that Kubernetes allows in names
// of nodes (a-z, 0-9, - and .) and in values of labels (letters, digits, -, _ and .) are valid, since both are logged.
package caller

// version is the first byte of the data.
const version = 1

// Maximum lengths in bytes: of a node's name (RFC 1123 subdomain), and of a zone (the value of a label).
const (
	MaxNode = 253
	MaxZone = 63
)

// Append appends the option's data to dst. The zone may be empty. It returns false for an invalid name of a node or zone.
func Append(dst []byte, node, zone string) ([]byte, bool) {
	if node == "" || len(node) > MaxNode || len(zone) > MaxZone || !consistsOf(node, isNodeChar) || !consistsOf(zone, isZoneChar) {
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

// Parse returns the name of the node and the zone, which is empty without one, as slices of the data.
func Parse(data []byte) (node, zone []byte, ok bool) {
	if len(data) < 2 || data[0] != version {
		return nil, nil, false
	}
	node, rest, ok := cutName(data[1:], MaxNode, isNodeChar)
	if !ok || len(rest) == 0 {
		return node, nil, ok
	}
	zone, rest, ok = cutName(rest, MaxZone, isZoneChar)
	if !ok || len(rest) != 0 {
		return nil, nil, false
	}
	return node, zone, true
}

// cutName returns the name behind the length byte at the start of b, and the rest.
func cutName(b []byte, limit int, valid func(c byte) bool) (name, rest []byte, ok bool) {
	n := int(b[0])
	if n == 0 || n > limit || len(b) < 1+n || !consistsOf(b[1:1+n], valid) {
		return nil, nil, false
	}
	return b[1 : 1+n], b[1+n:], true
}

func consistsOf[T string | []byte](text T, valid func(c byte) bool) bool {
	for i := range len(text) {
		if !valid(text[i]) {
			return false
		}
	}
	return true
}

func isNodeChar(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '.'
}

func isZoneChar(c byte) bool { return isNodeChar(c) || 'A' <= c && c <= 'Z' || c == '_' }
