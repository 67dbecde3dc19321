package harness

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/seed-b9b531af/ramjet/internal/freeport"
)

// transport is one way to connect two processes of this host. That is all
// there is to it: the client and server code sees net.Listener and net.Conn,
// or, where event handlers do the work, gnet.Conn.
type transport struct {
	name   string // as given to -transport
	title  string // heading of its column
	listen func(site) (net.Listener, error)
	dial   func(addr string) (net.Conn, error)

	// describe says what a connection dialed to addr really is; if nil, its
	// type does.
	describe func(conn net.Conn, addr string) string

	engine engine // how it serves event handlers

	// files says that each connection is an open file of both processes.
	files bool
}

// transports in the order of the table's columns. The first one is what the
// others are compared to.
var transports = append([]transport{
	{
		name:   "tcp",
		title:  "TCP",
		listen: func(at site) (net.Listener, error) { return net.Listen("tcp", at.anyPort()) },
		dial:   func(addr string) (net.Conn, error) { return net.Dial("tcp", addr) },
		engine: gnetEngine("tcp", func(at site) (string, error) { return freeport.Address(at.Host) }),
		files:  true,
	},
	{
		name:   "unix",
		title:  "Unix",
		listen: func(at site) (net.Listener, error) { return net.Listen("unix", unixPath(at.Dir)) },
		dial:   func(addr string) (net.Conn, error) { return net.Dial("unix", addr) },
		engine: gnetEngine("unix", func(at site) (string, error) { return unixPath(at.Dir), nil }),
		files:  true,
	},
	ramjet(),
}, rdma()...)

// site is where a server may listen.
type site struct {
	Host string `json:"host"` // its address
	Dir  string `json:"dir"`  // for a socket
}

// anyPort is an address to listen at.
func (s site) anyPort() string { return net.JoinHostPort(s.Host, "0") }

// nature is what a connection of this transport really is.
func (t transport) nature(conn net.Conn, addr string) string {
	if t.describe == nil {
		return fmt.Sprintf("%T", conn)
	}
	return t.describe(conn, addr)
}

// transportByName knows also the names of columns that are between two containers.
func transportByName(name string) (transport, error) {
	base, between := strings.CutSuffix(name, apart)
	for _, t := range transports {
		if t.name == base {
			if between {
				t.title += " apart"
			}
			return t, nil
		}
	}
	return transport{}, fmt.Errorf("unknown transport %q, there are %s", name, strings.Join(transportNames(), ", "))
}

func transportNames() []string {
	names := make([]string, len(transports))
	for i, t := range transports {
		names[i] = t.name
	}
	return names
}

// unixPath gives each serving process a path of its own below dir.
func unixPath(dir string) string {
	return filepath.Join(dir, fmt.Sprintf("%d.sock", os.Getpid()))
}

// unixWorks reports whether this system has Unix sockets at all.
func unixWorks() bool {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return false
	}
	defer os.RemoveAll(dir)
	ln, err := net.Listen("unix", unixPath(dir))
	if err != nil {
		return false
	}
	ln.Close()
	return true
}
