//go:build !linux

package rnet

import "syscall"

// packetState is of interest on Linux only: elsewhere all dials go over TCP.
type packetState struct{}

func packetOptionsOf(syscall.RawConn) packetState { return packetState{} }

func (packetState) changed(packetState) string { return "" }
