//go:build amd64 || arm64

package mlx5_test

import (
	"bytes"
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet"
	model "github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/mlx5"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/modeltest"
)

// TestConnectionsOfTwoHosts has connections of package rnet over two devices: an
// echo of messages of many sizes, several at once.
func TestConnectionsOfTwoHosts(t *testing.T) {
	for _, c := range []struct {
		name    string
		hostile uint64
		while   func(context.Context, []*model.Device)
	}{{"RoCE", 0, nil}, {"hostile", 3, nil}, {"the link comes and goes", 0, cutLinks}} {
		t.Run(c.name, func(t *testing.T) {
			if !modeltest.On(t, modeltest.Config{
				Device: model.Config{Link: model.Ethernet}, Hosts: 2, Network: true, Hostile: c.hostile, While: c.while, Env: []string{"RAMJET_EXPERIMENTAL=mlx5"},
			}) {
				return
			}
			const address, conns = "10.77.0.1:9000", 3
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if modeltest.Host() == 0 {
				l, err := (&rnet.ListenConfig{Transport: rnet.RDMA}).Listen(ctx, "tcp", address)
				require.NoError(t, err)
				modeltest.Exchange(t, nil)
				for range conns {
					conn, err := l.Accept()
					require.NoError(t, err)
					go func() {
						_, _ = io.Copy(conn, conn) // the other host looks at what comes back
						_ = conn.Close()
					}()
				}
				modeltest.Exchange(t, nil)
				require.NoError(t, l.Close())
				return
			}
			modeltest.Exchange(t, nil)
			failed := make(chan error, conns)
			for i := range conns {
				go func() { failed <- echo(ctx, address, byte(i)) }()
			}
			for range conns {
				require.NoError(t, <-failed) // ends with the echo, or the deadline of its connection
			}
			modeltest.Exchange(t, nil)
		})
	}
}

// cutLinks takes the link of a host away, and gives it back before the other's retries end, again and again.
func cutLinks(ctx context.Context, devices []*model.Device) {
	for n := 0; ; n++ {
		d := devices[n%len(devices)]
		for _, up := range []bool{false, true} {
			d.SetLink(up)
			select { // ends with the time, or the hosts
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				d.SetLink(true)
				return
			}
		}
	}
}

// echo sends what must come back.
func echo(ctx context.Context, address string, seed byte) error {
	conn, err := (&rnet.Dialer{Transport: rnet.RDMA}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline) // fails with a closed connection, which the next call shows
	}
	for n := 1; n <= 1<<21; n = n*3 + 1 {
		sent := make([]byte, n)
		for i := range sent {
			sent[i] = byte(i>>8)*31 + byte(i) + seed
		}
		wrote := make(chan error, 1)
		go func() { _, err := conn.Write(sent); wrote <- err }()
		got := make([]byte, n)
		if _, err := io.ReadFull(conn, got); err != nil {
			return err
		}
		if err := <-wrote; err != nil { // ends with the connection's deadline
			return err
		}
		if !bytes.Equal(sent, got) {
			return io.ErrUnexpectedEOF
		}
	}
	return nil
}
