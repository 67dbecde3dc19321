//go:build conformance

package hook

import (
	"context"
	"net"
	"os"

	"github.com/seed-b9b531af/ramjet/rnet"
)

// RAMJET_CONFORMANCE_DIALS names a file to which each dial that succeeds appends
// one byte: 'r' if it got a stream, 't' if it got a TCP connection. The hook has no
// other way to tell: the suites' own TestMain decide how a test binary ends.
const dialsVariable = "RAMJET_CONFORMANCE_DIALS"

func init() {
	dials, _ := os.OpenFile(os.Getenv(dialsVariable), os.O_WRONLY|os.O_APPEND, 0)
	net.RamjetDial = func(ctx context.Context, d *net.Dialer, network, address string) (net.Conn, error) {
		rd := rnet.Dialer{
			Timeout: d.Timeout, Deadline: d.Deadline, FallbackDelay: d.FallbackDelay,
			KeepAlive: d.KeepAlive, KeepAliveConfig: d.KeepAliveConfig, Resolver: d.Resolver,
			LocalAddr: d.LocalAddr, Control: d.Control, ControlContext: d.ControlContext,
		}
		conn, err := rd.DialContext(ctx, network, address)
		if err == nil {
			kind := []byte{'t'}
			if _, ok := conn.(*rnet.Conn); ok {
				kind[0] = 'r'
			}
			dials.Write(kind)
		}
		return conn, err
	}
	net.RamjetListen = func(ctx context.Context, lc *net.ListenConfig, network, address string) (net.Listener, error) {
		rlc := rnet.ListenConfig{Control: lc.Control, KeepAlive: lc.KeepAlive, KeepAliveConfig: lc.KeepAliveConfig}
		return rlc.Listen(ctx, network, address)
	}
}
