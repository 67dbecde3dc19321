package main

import (
	"context"
	"net"
	"time"

	"github.com/hashicorp/raft"
	"github.com/seed-b9b531af/ramjet/rnet"
)

// streams makes raft's connections: the listener is rnet's, and so is the
// dialer. That is all that raft needs.
type streams struct {
	net.Listener
}

func (streams) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	d := rnet.Dialer{Timeout: timeout}
	return d.DialContext(context.Background(), "tcp", string(addr)) // ended by the timeout
}
