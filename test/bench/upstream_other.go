//go:build !linux

package main

import "errors"

func serveUpstream(string, bool) error { return errors.New("upstream: epoll needs Linux") }
