//go:build !linux

package serial

// canFence reports that there is none: sections stay mutexes.
func canFence() bool { return false }

func fence() {}
