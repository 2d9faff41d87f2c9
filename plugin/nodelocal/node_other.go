//go:build !linux

package nodelocal

import "errors"

// node can't be on another system than Linux.
type node struct{ config config }

func newNode(c config) *node { return &node{c} }

func (n *node) start() error {
	return errors.New("interface and rules need Linux")
}

func (n *node) ready() bool      { return false }
func (n *node) poke()            {}
func (n *node) handOver([]*node) {}
func (n *node) leave()           {}
func (n *node) finish()          {}
