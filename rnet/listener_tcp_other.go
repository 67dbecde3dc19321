//go:build !linux

package rnet

// tcpWaits reports whether TCP must be preferred: there are no streams here.
func (l *Listener) tcpWaits() bool { return false }
