//go:build !linux

package serial

// registerFence reports that there is none: sections stay mutexes.
func registerFence() bool { return false }

func fence() {}
