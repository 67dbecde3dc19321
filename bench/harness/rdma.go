package harness

import (
	"context"
	"fmt"
	"net"

	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/rgnet"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs"
)

// rdma returns a transport for each RDMA device of the kernel that ramjet can
// drive: ramjet over that device and no other, between two processes of this
// host.
func rdma() []transport {
	devices, err := rdmahost.Describe()
	if err != nil {
		return nil // examples/rdmainfo tells why
	}
	var transports []transport
	for _, dev := range devices {
		host, ok := addressOf(dev)
		if !ok || !uverbs.Drives(dev.Driver) {
			continue
		}
		transports = append(transports, transport{
			name:  dev.Name,
			title: fmt.Sprintf("%s (%v)", dev.Name, dev.Transport),
			listen: func(site) (net.Listener, error) {
				lc := rnet.ListenConfig{Transport: rnet.RDMA, Device: dev.Name}
				return lc.Listen(context.Background(), "tcp", net.JoinHostPort(host, "0"))
			},
			dial: func(addr string) (net.Conn, error) {
				d := rnet.Dialer{Transport: rnet.RDMA, Device: dev.Name}
				return d.Dial("tcp", addr)
			},
			describe: describeRamjet,
			engine:   rgnetEngine(rgnet.Config{Transport: rnet.RDMA, Device: dev.Name}, host),
		})
	}
	return transports
}

// addressOf returns an address of a network interface that a device is on.
func addressOf(dev rdmahost.Description) (host string, ok bool) {
	for _, port := range dev.Ports {
		ifi, err := net.InterfaceByName(port.Netdev)
		if err != nil {
			continue
		}
		addrs, err := ifi.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
				return n.IP.String(), true
			}
		}
	}
	return "", false
}
