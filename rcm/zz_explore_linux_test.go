package rcm

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"
)

func TestZZExplore(t *testing.T) {
	for _, a := range []string{"10.0.0.1", "fd00::1", "127.0.0.1", "::1", "10.0.1.1", "10.0.0.2", "10.9.9.9", "127.0.0.5"} {
		ctx, c := context.WithTimeout(t.Context(), 2*time.Second)
		s := time.Now()
		r, err := Kernel().Resolve(ctx, netip.AddrPortFrom(netip.MustParseAddr(a), 9000))
		if err != nil {
			fmt.Println(a, err, time.Since(s))
		} else {
			k := r.(*kernelRoute)
			fmt.Println(a, k.device, k.local, k.remote, time.Since(s))
			r.Close()
		}
		c()
	}
	for _, a := range interfaceAddrs() {
		d, err := deviceAt(a)
		fmt.Println("at", a, d, err)
	}
	try := func(what string, addr string, port uint16, opts ...string) *cmID {
		id, err := newCMID()
		if err != nil {
			t.Fatal(err)
		}
		err = id.bind(netip.AddrPortFrom(netip.MustParseAddr(addr), port))
		if err != nil {
			fmt.Println(what, "bind", addr, port, err)
			return id
		}
		fmt.Println(what, "bound", addr, port, "listen:", id.listen(10))
		return id
	}
	tl := func(network, addr string) net.Listener {
		l, err := net.Listen(network, addr)
		fmt.Println("tcp", network, addr, err)
		return l
	}
	// wildcard rdma with TCP first, then the reverse
	for i, c := range [][3]string{{"0.0.0.0", "tcp4", "0.0.0.0"}, {"0.0.0.0", "tcp4", "10.0.0.1"}, {"0.0.0.0", "tcp4", "127.0.0.1"}, {"::", "tcp", "::"}, {"127.0.0.1", "tcp4", "127.0.0.1"}, {"127.0.0.1", "tcp4", "0.0.0.0"}, {"10.0.0.1", "tcp4", "0.0.0.0"}, {"::1", "tcp", "::"},{"0.0.0.0", "tcp", "::"}} {
		port := uint16(9100 + 10*i)
		fmt.Println("--- rdma", c[0], "tcp", c[1], c[2])
		l := tl(c[1], netip.AddrPortFrom(netip.MustParseAddr(c[2]), port).String())
		id := try("tcp first;", c[0], port)
		id.destroy()
		if l != nil {
			l.Close()
		}
		id = try("rdma first;", c[0], port+1)
		l = tl(c[1], netip.AddrPortFrom(netip.MustParseAddr(c[2]), port+1).String())
		id.destroy()
		if l != nil {
			l.Close()
		}
	}
	time.Sleep(100*time.Millisecond)
}
