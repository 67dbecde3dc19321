//go:build !unix

package rnet

import "io"

type socketReader struct{}

// socketOf returns nil: descriptors of this system are not read past package net.
func socketOf(io.Reader) *socketReader { return nil }

func (*socketReader) next() (*chunk, error) { panic("rnet: no socket") }
