//go:build !linux

package rnet

// tcpPortRange is for systems that have no sessions.
func tcpPortRange() (low, high int) { return 49152, 65535 }
