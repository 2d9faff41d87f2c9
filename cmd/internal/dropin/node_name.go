package dropin

import (
	"fmt"
	"regexp"
)

// The environment variables with the name and the zone of this node, which the manifest sets by the downward API.
const (
	nodeNameVariable = "NODE_NAME"
	nodeZoneVariable = "NODE_ZONE"
)

// The name of a Node is an RFC 1123 subdomain, its zone the value of a label. Lengths are in bytes.
const (
	maxNodeName = 253
	maxNodeZone = 63
)

var (
	nodeNames   = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*)?$`)
	labelValues = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$`)
)

func checkNodeName(text string) error {
	if len(text) > maxNodeName || !nodeNames.MatchString(text) {
		return fmt.Errorf("%q is not the name of a node, which has 1 to %d characters a-z, 0-9, - and ., and a letter or digit at both ends", text, maxNodeName)
	}
	return nil
}

func checkNodeZone(text string) error {
	if len(text) > maxNodeZone || !labelValues.MatchString(text) {
		return fmt.Errorf("%q is not the value of a label, which has 1 to %d letters, digits, -, _ and ., and a letter or digit at both ends", text, maxNodeZone)
	}
	return nil
}

// nodeNameAndZone returns the name and the zone of this node from the flags, or else from the environment; "" is
// unknown. An invalid variable of the environment, which may have another purpose, is logged and ignored.
func (n *Node) nodeNameAndZone() (name, zone string, invalid error) {
	name, zone = n.options.nodeName, n.options.nodeZone
	if !n.set("node-name") {
		name, invalid = n.checkedVariable(nodeNameVariable, checkNodeName)
	}
	if !n.set("node-zone") && invalid == nil {
		zone, invalid = n.checkedVariable(nodeZoneVariable, checkNodeZone)
	}
	return name, zone, invalid
}

// Name returns the name of this node, "" if it is unknown.
func (n *Node) Name() string {
	name, _, _ := n.nodeNameAndZone() // each rendering logs an invalid variable
	return name
}

func (n *Node) checkedVariable(name string, check func(string) error) (string, error) {
	value := n.getenv(name)
	if err := check(value); err != nil {
		return "", fmt.Errorf("variable %s of the environment: %w; it is not sent to cluster DNS", name, err)
	}
	return value, nil
}
