package main

import (
	"context"
	"errors"
	"fmt"
	"net/rpc"
	"path/filepath"
	"strings"
	"sync"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/internal/freeport"
	"github.com/seed-b9b531af/ramjet/rnet"
)

// cluster are nodes in processes of their own, and a client of theirs.
type cluster struct {
	members []*member
	dialer  rnet.Dialer // the client's
}

// member is a node's process as its client sees it.
type member struct {
	addr    string // for clients
	args    []string
	process *child.Process // nil while the node is dead

	mu   sync.Mutex
	conn *rpc.Client // guarded by mu, nil if there is none
}

// startCluster starts three nodes that keep their logs in dir.
func startCluster(ctx context.Context, dir string, dialer rnet.Dialer) (*cluster, error) {
	c := &cluster{dialer: dialer}
	const size = 3
	var addrs []string // those for other nodes, then those for clients
	for range 2 * size {
		addr, err := freeport.Address("127.0.0.1")
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, addr)
	}
	nodes := strings.Join(addrs[:size], ",")
	for i := range size {
		addr := addrs[size+i]
		m := &member{addr: addr, args: []string{"-listen", addr, "-node", addrs[i], "-cluster", nodes, "-dir", filepath.Join(dir, fmt.Sprint(i))}}
		if err := m.start(ctx); err != nil {
			return nil, errors.Join(err, c.stop())
		}
		c.members = append(c.members, m)
	}
	return c, nil
}

// start starts the node, or starts it again.
func (m *member) start(ctx context.Context) (err error) {
	m.process, err = child.Start(ctx, m.args...)
	return err
}

// kill ends the node by SIGKILL.
func (m *member) kill() error {
	err := m.process.Kill()
	m.process = nil
	return err
}

// stop ends all nodes that live.
func (c *cluster) stop() (err error) {
	for _, m := range c.members {
		m.lose(nil)
		if m.process != nil {
			err = errors.Join(err, m.process.Stop())
		}
	}
	return err
}

// lose gives up the connection to the node, unless that is another one by now;
// nil is any.
func (m *member) lose(conn *rpc.Client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != nil && (conn == nil || m.conn == conn) {
		m.conn.Close()
		m.conn = nil
	}
}

// connect returns the connection to a node, which it dials if there is none.
func (c *cluster) connect(ctx context.Context, m *member) (*rpc.Client, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn == nil {
		conn, err := c.dialer.DialContext(ctx, "tcp", m.addr)
		if err != nil {
			return nil, err
		}
		m.conn = rpc.NewClient(conn)
	}
	return m.conn, nil
}

// call calls a method of a node.
func (c *cluster) call(ctx context.Context, m *member, method string, args, reply any) error {
	conn, err := c.connect(ctx, m)
	if err != nil {
		return err
	}
	select {
	case call := <-conn.Go("Node."+method, args, reply, nil).Done:
		// ended by the answer, or the connection's end
		var answer rpc.ServerError
		if call.Error != nil && !errors.As(call.Error, &answer) {
			m.lose(conn)
		}
		return call.Error
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

var errNoLeader = errors.New("no node leads")

// leader returns the node that says that it leads.
func (c *cluster) leader(ctx context.Context) (*member, error) {
	for _, m := range c.members {
		var leads bool
		if err := c.call(ctx, m, "Leads", struct{}{}, &leads); err == nil && leads {
			return m, nil
		}
	}
	return nil, errNoLeader
}
