//go:build !linux

package random

func fromSystem([]byte) bool { return false }
