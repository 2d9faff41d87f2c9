//go:build !linux

package memory

func ReleaseProgram() error { return nil }
