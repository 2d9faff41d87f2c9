//go:build !linux

package main

import "errors"

func echo(string) error { return errors.New("echo: recvmmsg needs Linux") }
