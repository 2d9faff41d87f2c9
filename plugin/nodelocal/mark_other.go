//go:build !linux

package nodelocal

import "errors"

func setMark(int, int) error { return errors.ErrUnsupported }
