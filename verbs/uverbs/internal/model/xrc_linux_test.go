//go:build amd64 || arm64

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/mlx5"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/modeltest"
)

// Each end has a target and an initiator, and an SRQ that the other end's requests name. That the
// program says so is that all messages came.
func TestPingpongOfXRC(t *testing.T) {
	for _, test := range []struct {
		args      string
		config    mlx5.Config
		writeOnly bool
		hostile   uint64
	}{
		{args: "ibv_xsrq_pingpong -n 200"},
		{args: "ibv_xsrq_pingpong -e -n 200"},
		{args: "ibv_xsrq_pingpong -e -s 100000 -n 20", config: mlx5.Config{StaticUARs: true}, writeOnly: true},
		{args: "ibv_xsrq_pingpong -e -g 3 -n 50", config: mlx5.Config{Link: fabric.Ethernet, StaticUARs: true}},
		{args: "ibv_xsrq_pingpong -e -n 50", config: mlx5.Config{CQEVersion0: true}},
		{args: "ibv_xsrq_pingpong -e -n 50", hostile: 3},
	} {
		t.Run(fmt.Sprintf("%s %+v %t %d", test.args, test.config, test.writeOnly, test.hostile), func(t *testing.T) {
			r := modeltest.NewTrial(t, test.hostile)
			r.Device, r.WriteOnly = test.config, test.writeOnly
			server, client := r.Pair(t, strings.Fields(test.args)...)
			for _, output := range []string{server, client} {
				require.Contains(t, output, "success")
			}
		})
	}
}
