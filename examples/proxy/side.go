package main

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/seed-b9b531af/ramjet/rnet"
)

// side is one side of the proxy: an address, and the package that listens
// there or dials it.
type side struct {
	kind string // "tcp" or "rnet"
	addr string
}

// UnmarshalText reads tcp:ADDRESS or rnet:ADDRESS.
func (s *side) UnmarshalText(text []byte) error {
	kind, addr, _ := strings.Cut(string(text), ":")
	if kind != "tcp" && kind != "rnet" {
		return fmt.Errorf("%q is neither tcp:ADDRESS nor rnet:ADDRESS", text)
	}
	*s = side{kind: kind, addr: addr}
	return nil
}

// MarshalText is the inverse of UnmarshalText.
func (s side) MarshalText() ([]byte, error) {
	if s == (side{}) {
		return nil, nil
	}
	return []byte(s.kind + ":" + s.addr), nil
}

func (s side) listen() (net.Listener, error) {
	if s.kind == "rnet" {
		return rnet.Listen("tcp", s.addr)
	}
	return net.Listen("tcp", s.addr)
}

func (s side) dial(ctx context.Context) (net.Conn, error) {
	if s.kind == "rnet" {
		var d rnet.Dialer
		return d.DialContext(ctx, "tcp", s.addr)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", s.addr)
}
