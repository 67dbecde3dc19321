package harness

import (
	"fmt"
	"net"
	"slices"

	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/rgnet"
)

// ramjet, with the defaults of a program that changes nothing but the names
// of the two functions.
func ramjet() transport {
	return transport{
		name:     "ramjet",
		title:    "ramjet",
		listen:   func(at site) (net.Listener, error) { return rnet.Listen("tcp", at.anyPort()) },
		dial:     func(addr string) (net.Conn, error) { return rnet.Dial("tcp", addr) },
		describe: describeRamjet,
		engine:   rgnetEngine(rgnet.Config{}, ""),
	}
}

// describeRamjet tells an accelerated connection from one that fell back to
// TCP, and why that did.
func describeRamjet(conn net.Conn, addr string) string {
	if c, ok := conn.(*rnet.Conn); ok {
		return fmt.Sprintf("%T over the %s transport", conn, c.Stats().Transport)
	}
	for _, d := range slices.Backward(rnet.Explain(addr)) {
		if d.Transport == rnet.TCP {
			return fmt.Sprintf("%T (%s: %s)", conn, d.Reason, d.Meaning)
		}
	}
	return fmt.Sprintf("%T", conn)
}
