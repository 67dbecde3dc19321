package kerneltest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/testhost"
	"github.com/seed-b9b531af/ramjet/rnet"
)

// device is a device of the kernel over which a test runs.
type device struct {
	name string
	host string // the address of this host that it serves
}

func devices() (list []device) {
	for _, d := range testhost.Devices() {
		list = append(list, device{d.Name, d.Host})
	}
	return list
}

// deviceNamed is how a child process gets the device of its parent.
func deviceNamed(name string) (device, error) {
	list := devices()
	i := slices.IndexFunc(list, func(k device) bool { return k.name == name })
	if i < 0 {
		return device{}, fmt.Errorf("no device %q", name)
	}
	return list[i], nil
}

// needsGuest skips t outside the virtual machine. Inside it makes sure that
// the devices are there which the variable names, and returns them.
func needsGuest(t testing.TB) []device {
	t.Helper()
	list := devices()
	if list == nil {
		t.Skip(testhost.DevicesVariable + ` names no device of the kernel: run this in the guest, "go test -exec guest"`)
	}
	for _, k := range list {
		_, err := os.Stat("/sys/class/infiniband/" + k.name)
		require.NoError(t, err)
	}
	return list
}

// overKernel runs f as a subtest for each device of the kernel. Each has to
// leave the device as it was.
func overKernel(t *testing.T, f func(t *testing.T, k device)) {
	for _, k := range needsGuest(t) {
		t.Run(k.name, func(t *testing.T) {
			leavesDevicesAlone(t)
			f(t, k)
		})
	}
}

// anyPort is the address to listen on.
func (k device) anyPort() string { return net.JoinHostPort(k.host, "0") }

// dialer and listenAnywhere use RDMA and nothing else.
func (k device) dialer() *rnet.Dialer { return &rnet.Dialer{Transport: rnet.RDMA} }

func (k device) listenAnywhere() (net.Listener, error) {
	lc := rnet.ListenConfig{Transport: rnet.RDMA}
	return lc.Listen(context.Background(), "tcp", k.anyPort())
}

// listen makes a listener on the device's address that is closed with the test.
func (k device) listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := k.listenAnywhere()
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln
}

// connect requires a connection through ln to come about.
func (k device) connect(t testing.TB, ln net.Listener) {
	t.Helper()
	dialed, err := k.dialer().Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer dialed.Close()
	accepted, err := ln.Accept()
	require.NoError(t, err)
	require.NoError(t, accepted.Close())
}

// listenAs listens on the device of that name and prints the address.
func listenAs(name string) (net.Listener, error) {
	k, err := deviceNamed(name)
	if err != nil {
		return nil, err
	}
	ln, err := k.listenAnywhere()
	if err == nil {
		fmt.Println(ln.Addr())
	}
	return ln, err
}

// carriedBy names the transport and device of a connection.
func carriedBy(c net.Conn) string {
	stream, ok := c.(*rnet.Conn)
	if !ok {
		return string(rnet.TCP)
	}
	s, err := sessionOf(stream)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(s.Transport, " ", s.Device)
}

var errNoSession = errors.New("its session has ended")

// sessionOf returns the statistics of the session that a connection is on.
func sessionOf(c *rnet.Conn) (rnet.SessionStats, error) {
	sessions := rnet.ReadStats().Sessions
	i := slices.IndexFunc(sessions, func(s rnet.SessionStats) bool { return s.Number == c.Stats().Session })
	if i < 0 {
		return rnet.SessionStats{}, errNoSession
	}
	return sessions[i], nil
}

// forgetFailure makes the next dial of address over the device try
// it, whatever has failed before: a dial to which not even TCP is left makes it forgotten.
func (k device) forgetFailure(t testing.TB, address string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := (&rnet.Dialer{Device: k.name}).DialContext(ctx, "tcp", address)
	require.ErrorContains(t, err, "canceled")
}
