package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/examples/internal/program"
	"github.com/seed-b9b531af/ramjet/rnet"
)

// node is one of the cluster's. Its clients call it by net/rpc, over rnet too.
type node struct {
	addr    string   // for the other nodes
	cluster []string // all nodes' addresses
	dir     string

	journal journal
	raft    *raft.Raft
}

// run is the node until ctx ends.
func (n *node) run(ctx context.Context, addr string, out io.Writer) error {
	ln, err := rnet.Listen("tcp", n.addr)
	if err != nil {
		return err
	}
	log := hclog.New(&hclog.LoggerOptions{Name: n.addr, Level: hclog.Off})
	// The time is for an exchange with a node, after which it counts as dead.
	transport := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: streams{ln}, MaxPool: 3, Timeout: 2 * time.Second, Logger: log,
	})
	defer transport.Close()
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return err
	}
	store, err := raftboltdb.NewBoltStore(filepath.Join(n.dir, "log"))
	if err != nil {
		return err
	}
	defer store.Close()
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(n.dir, 2, log)
	if err != nil {
		return err
	}
	config := raft.DefaultConfig()
	config.LocalID = raft.ServerID(n.addr)
	// the default is soon over on a busy machine
	config.LeaderLeaseTimeout = config.HeartbeatTimeout
	config.Logger = log
	if err := n.bootstrap(config, store, snapshots, transport); err != nil {
		return err
	}
	if n.raft, err = raft.NewRaft(config, &n.journal, store, store, snapshots, transport); err != nil {
		return err
	}
	return errors.Join(n.serve(ctx, addr, out), n.raft.Shutdown().Error())
}

// bootstrap tells a new node who else is in the cluster. One that was there
// before knows.
func (n *node) bootstrap(config *raft.Config, store *raftboltdb.BoltStore, snapshots raft.SnapshotStore, transport raft.Transport) error {
	known, err := raft.HasExistingState(store, store, snapshots)
	if err != nil || known {
		return err
	}
	var all raft.Configuration
	for _, addr := range n.cluster {
		all.Servers = append(all.Servers, raft.Server{ID: raft.ServerID(addr), Address: raft.ServerAddress(addr)})
	}
	return raft.BootstrapCluster(config, store, store, snapshots, transport, all)
}

// serve answers clients until ctx ends.
func (n *node) serve(ctx context.Context, addr string, out io.Writer) error {
	ln, err := rnet.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, child.Announcement+ln.Addr().String())
	server := rpc.NewServer()
	if err := server.RegisterName("Node", &calls{n}); err != nil {
		return err
	}
	program.Accept(ctx, ln, func(conn net.Conn) {
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		defer stop()
		server.ServeConn(conn) // ended by the client, or by ctx
	})
	return nil
}

// applyTime is how long an entry may wait to be taken up by the leader.
const applyTime = 5 * time.Second

// calls are what clients can ask of a node.
type calls struct {
	node *node
}

// Append appends an entry and returns, when a majority has it, how many there
// are. It fails at a node that does not lead.
func (c *calls) Append(entry string, count *int) error {
	applied := c.node.raft.Apply([]byte(entry), applyTime)
	if err := applied.Error(); err != nil { // ended by a majority, or the end of the leadership
		return err
	}
	*count = applied.Response().(int)
	return nil
}

// Entries returns all entries that the node knows to be at a majority.
func (c *calls) Entries(_ struct{}, entries *[]string) error {
	*entries = c.node.journal.all()
	return nil
}

// Leads reports whether the node leads.
func (c *calls) Leads(_ struct{}, leads *bool) error {
	*leads = c.node.raft.State() == raft.Leader
	return nil
}

// Transports tells which transport the last dial of each other node got, of
// those that the node has reached.
func (c *calls) Transports(_ struct{}, told *map[string]string) error {
	*told = map[string]string{}
	for _, other := range c.node.cluster {
		for _, decision := range rnet.Explain(other) {
			if decision.Err == nil {
				(*told)[other] = string(decision.Transport)
			}
		}
	}
	return nil
}

// streams makes raft's connections: the listener is rnet's, and so is the
// dialer. That is all that raft needs.
type streams struct {
	net.Listener
}

func (streams) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	d := rnet.Dialer{Timeout: timeout}
	return d.DialContext(context.Background(), "tcp", string(addr)) // ended by the timeout
}
