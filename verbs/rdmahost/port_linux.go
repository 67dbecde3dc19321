package rdmahost

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// HasPort reports whether a device has a port. If that cannot be told it may
// have.
func HasPort(device string, port uint8) bool {
	_, err := fs.Stat(thisHost.FS, thisHost.portDir(device, port))
	return !errors.Is(err, fs.ErrNotExist)
}

// PortState reads the state of a port, "ACTIVE" or another name of the
// kernel's, and whether the port carries anything in it. The error wraps
// fs.ErrNotExist if the device or the port is not there.
func PortState(device string, port uint8) (name string, active bool, err error) {
	text, err := thisHost.present(thisHost.portDir(device, port), "state")
	if err != nil {
		return "", false, err
	}
	name, active = portState(text)
	return name, active, nil
}

// portState reads "4: ACTIVE" (enum ib_port_state). The only state after that
// is ACTIVE_DEFER, in which a port carries traffic too.
func portState(text string) (name string, active bool) {
	number, name, _ := strings.Cut(text, ": ")
	n, err := strconv.ParseUint(number, 10, 8)
	if err != nil || name == "" {
		return fmt.Sprintf("in state %q", text), false
	}
	return name, n >= 4
}

// PortTransport says what a port speaks: an RNIC iWARP, a channel adapter
// InfiniBand or, on Ethernet, RoCE. The error wraps fs.ErrNotExist if the device
// or the port is not there.
func PortTransport(device string, port uint8) (verbs.Transport, error) {
	return thisHost.portTransport(device, port)
}

func (h host) portTransport(device string, port uint8) (verbs.Transport, error) {
	text, err := h.present(path.Join(classInfiniband, device), "node_type")
	if err != nil {
		return 0, err
	}
	link, err := h.present(h.portDir(device, port), "link_layer")
	if err != nil {
		return 0, err
	}
	return transportOf("", nodeType(text), link), nil
}

// present reads a file of a device. The error wraps fs.ErrNotExist also if the
// device has gone while it was read.
func (h host) present(elem ...string) (string, error) {
	text, err := h.text(elem...)
	if errors.Is(err, unix.ENODEV) {
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return text, err
}

// nodeType reads "1: CA", 0 if it is no such text.
func nodeType(text string) uint8 {
	number, _, _ := strings.Cut(text, ":")
	n, err := strconv.ParseUint(number, 10, 8)
	if err != nil {
		return 0
	}
	return uint8(n)
}
