//go:build !linux

package main

import (
	"context"
	"errors"
)

const steeredMode = "steered"

var errLinux = errors.New("this part of the benchmark needs Linux")

func serveFloor(string) error { return errLinux }

func steer(context.Context, []string) error { return errLinux }

func steered() error { return errLinux }

func checkFiles(int) error { return errLinux }
