//go:build !linux

package nodelocal

import "errors"

// node exists on Linux only.
type node struct{ config config }

func newNode(c config) *node { return &node{c} }

func (n *node) start() error {
	return errors.New("nodelocal needs Linux")
}

func (n *node) ready() bool      { return false }
func (n *node) poke()            {}
func (n *node) handOver([]*node) {}
func (n *node) leave()           {}
func (n *node) finish()          {}
