//go:build !linux

package attach

import (
	"context"
	"errors"
)

// There is no endpoint where there is no session.
type endpoint struct{}

func listen(func() ([]byte, error)) (*endpoint, error) { return nil, nil }

func (*endpoint) close() {}

// Endpoint is one that was found: there are none on this system.
type Endpoint struct {
	PID  int
	Ours bool
}

// Name is empty.
func (Endpoint) Name() string { return "" }

// Find returns no endpoints.
func Find() ([]Endpoint, error) {
	return nil, errors.New("attach: only Linux has sessions to look at")
}

// ErrStranger and ErrBusy are endpoints that do not answer: there are none.
var (
	ErrStranger = errors.New("attach: the endpoint belongs to another user")
	ErrBusy     = errors.New("attach: the endpoint's queue is full")
)

// Conn is a connection to an endpoint.
type Conn struct{}

// Dial fails: see Find.
func (Endpoint) Dial() (*Conn, error) { return nil, errors.ErrUnsupported }

// Read fails: see Find.
func (*Conn) Read(context.Context) (document []byte, pid int, err error) {
	return nil, 0, errors.ErrUnsupported
}
