//go:build !unix

package rnet

import (
	"io"

	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
)

type socketReader struct{}

// socketOf returns nil: descriptors of this system are not read past package net.
func socketOf(io.Reader) *socketReader { return nil }

func (*socketReader) next() (*mux.Chunk, error) { panic("rnet: no socket") }
