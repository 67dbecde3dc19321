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
type Endpoint struct{ PID int }

// Find returns no endpoints.
func Find() ([]Endpoint, error) {
	return nil, errors.New("attach: only Linux has sessions to look at")
}

// ErrStranger is an endpoint of another user that has a name of ours.
var ErrStranger = errors.New("attach: the endpoint belongs to another user")

// Read fails: see Find.
func (Endpoint) Read(context.Context) (document []byte, pid int, err error) {
	return nil, 0, errors.ErrUnsupported
}
