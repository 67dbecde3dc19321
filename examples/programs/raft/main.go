// Raft is a replicated log, by hashicorp/raft, whose nodes talk over rnet.
//
//	go run -C examples/programs ./raft
//
// starts three nodes, each in a process of its own, appends entries, kills the
// leader, appends more to the one that the others elect, starts the dead one
// again, compares what the three have, and says which transport they got.
// RNET_TRANSPORT=tcp in front of it shows the same over TCP. A node by hand,
// here the first of a cluster of one; all nodes have the same -cluster:
//
//	go run -C examples/programs ./raft -listen 127.0.0.1:9000 -node 127.0.0.1:9001 \
//		-cluster 127.0.0.1:9001 -dir /var/tmp/node1
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"strings"

	"github.com/seed-b9b531af/ramjet/examples/internal/program"
)

func main() { program.Main("raft", run) }

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("raft", flag.ContinueOnError)
	listen := flags.String("listen", "", "be a node, with its clients at this `address`")
	var n node
	flags.StringVar(&n.addr, "node", "", "the node's `address` for other nodes")
	cluster := flags.String("cluster", "", "the `addresses` of all nodes, with commas")
	flags.StringVar(&n.dir, "dir", "", "where the node keeps its log, a `directory`, which it makes")
	count := flags.Int("n", 500, "entries to append before the leader is killed, and after it")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *listen != "" {
		if n.addr == "" || *cluster == "" || n.dir == "" {
			return errors.New("a node needs -node, -cluster and -dir")
		}
		n.cluster = strings.Split(*cluster, ",")
		return n.run(ctx, *listen, out)
	}
	if *count < 1 {
		return errors.New("-n must be at least 1")
	}
	return demonstrate(ctx, *count, out)
}
