package main

import (
	"context"
	"fmt"
	"net"

	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// rdma returns a transport for each RDMA device of the kernel that ramjet can
// drive: ramjet over that device and no other, between two processes of this
// host.
func rdma() []transport {
	list, err := verbs.Devices()
	if err != nil {
		return nil // the diagnosis program tells why
	}
	var transports []transport
	for _, dev := range list {
		if dev.Transport == verbs.TransportSoft {
			continue
		}
		host, err := addressOf(dev.Name)
		if err != nil {
			continue // no driver, no permission, or no address
		}
		transports = append(transports, transport{
			name:  dev.Name,
			title: fmt.Sprintf("%s (%v)", dev.Name, dev.Transport),
			listen: func(string) (net.Listener, error) {
				lc := rnet.ListenConfig{Transport: rnet.RDMA, Device: dev.Name}
				return lc.Listen(context.Background(), "tcp", net.JoinHostPort(host, "0"))
			},
			dial: func(addr string) (net.Conn, error) {
				d := rnet.Dialer{Transport: rnet.RDMA, Device: dev.Name}
				return d.Dial("tcp", addr)
			},
			describe: describeRamjet,
		})
	}
	return transports
}

// addressOf returns an address of the network interface that a device is on.
func addressOf(device string) (string, error) {
	ctx, err := verbs.Open(device)
	if err != nil {
		return "", err
	}
	defer ctx.Close()
	gids, err := ctx.QueryGIDs(1)
	if err != nil {
		return "", err
	}
	for _, gid := range gids {
		ifi, err := net.InterfaceByName(gid.Netdev)
		if err != nil {
			continue
		}
		addrs, err := ifi.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
				return n.IP.String(), nil
			}
		}
	}
	return "", fmt.Errorf("device %s: its interface has no address", device)
}
