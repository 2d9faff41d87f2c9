//go:build !linux

package main

import (
	"context"
	"io"
)

const podMode = "pod"

type podServer struct{}

func servePod(string, io.Writer) error { return errLinux }

func (b *bench) measureKernel(context.Context) error { return errLinux }
