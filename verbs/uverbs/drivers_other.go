//go:build !linux

package uverbs

// Drives reports whether this package has a driver for devices whose driver in
// the kernel has that name. It has none here.
func Drives(string) bool { return false }

// Experimental reports whether a driver has never run on a device. There is none here.
func Experimental(string) bool { return false }
