//go:build !linux

package rnet

import "errors"

// socketPair is there on Linux only, as streams are.
type socketPair struct{}

func (c *Conn) dropSocketPair() {}

// rawConn is a Conn as a syscall.RawConn.
type rawConn Conn

func (r *rawConn) Control(func(uintptr)) error {
	return (*Conn)(r).opError("raw-control", errors.ErrUnsupported)
}

func (r *rawConn) Read(func(uintptr) bool) error {
	return (*Conn)(r).opError("raw-read", errors.ErrUnsupported)
}

func (r *rawConn) Write(func(uintptr) bool) error {
	return (*Conn)(r).opError("raw-write", errors.ErrUnsupported)
}
