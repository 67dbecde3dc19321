//go:build amd64 || arm64

package mlx5_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	model "github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/mlx5"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/modeltest"
)

// TestConnectionsOfTwoHosts has connections of package rnet over two devices: an
// echo of messages of many sizes, several at once.
func TestConnectionsOfTwoHosts(t *testing.T) {
	for _, c := range []struct {
		name    string
		hostile uint64
		while   func(context.Context, []fabric.Device)
	}{{"RoCE", 0, nil}, {"hostile", 3, nil}, {"the link comes and goes", 0, func(ctx context.Context, devices []fabric.Device) {
		fabric.CutLinks(ctx, devices, 5*time.Millisecond)
	}}} {
		t.Run(c.name, func(t *testing.T) {
			if !modeltest.On(t, modeltest.Config{
				Device: model.Config{Link: fabric.Ethernet}, Hosts: 2, Network: true, Hostile: c.hostile, While: c.while, Env: []string{"RAMJET_EXPERIMENTAL=mlx5"},
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
				// ends with the echo, or the deadline of its connection
				require.NoError(t, <-failed)
			}
			sessions := rnet.ReadStats().Sessions
			require.True(t, len(sessions) > 0 || c.while != nil)
			for _, s := range sessions {
				require.True(t, s.Experimental, "of a session over %s", s.Device)
			}
			modeltest.Exchange(t, nil)
		})
	}
}

// A device that is removed, of who dials or of who listens, ends the streams over it at both ends,
// and new dials go over TCP.
func TestConnectionsOverADeviceThatIsRemoved(t *testing.T) {
	for removed, name := range []string{"of the listener", "of the dialer"} {
		t.Run(name, func(t *testing.T) {
			if !modeltest.On(t, modeltest.Config{
				Device: model.Config{Link: fabric.Ethernet}, Hosts: 2, Network: true, Env: []string{"RAMJET_EXPERIMENTAL=mlx5"},
				While: func(ctx context.Context, devices []fabric.Device) {
					const traffic = 500
					for ctx.Err() == nil && devices[0].Fabric().Stats().Requests < traffic {
						time.Sleep(time.Millisecond)
					}
					devices[removed].Remove()
				},
			}) {
				return
			}
			const address = "10.77.0.1:9000"
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if modeltest.Host() == 0 {
				l, err := (&rnet.ListenConfig{Device: "mlx5_0"}).Listen(ctx, "tcp", address)
				require.NoError(t, err)
				modeltest.Exchange(t, nil)
				conn, err := l.Accept()
				require.NoError(t, err)
				require.IsType(t, &rnet.Conn{}, conn)
				_, err = io.Copy(conn, conn) // ends with the session
				require.ErrorIs(t, err, syscall.ECONNRESET)
				plain, err := l.Accept()
				require.NoError(t, err)
				_, _ = io.Copy(plain, plain) // the other host looks at what comes back
				require.NoError(t, l.Close())
				return
			}
			modeltest.Exchange(t, nil)
			d := &rnet.Dialer{Device: "mlx5_0", HeadStart: time.Minute}
			conn, err := d.DialContext(ctx, "tcp", address)
			require.NoError(t, err)
			require.IsType(t, &rnet.Conn{}, conn)
			for b := make([]byte, 1000); err == nil; { // ends with the session
				if _, err = conn.Write(b); err == nil {
					_, err = io.ReadFull(conn, b)
				}
			}
			require.ErrorIs(t, err, syscall.ECONNRESET)
			require.NoError(t, conn.Close())
			conn, err = d.DialContext(ctx, "tcp", address)
			require.NoError(t, err)
			require.IsType(t, &net.TCPConn{}, conn)
			_, err = conn.Write([]byte("x"))
			require.NoError(t, err)
			_, err = io.ReadFull(conn, make([]byte, 1))
			require.NoError(t, err)
			require.NoError(t, conn.Close())
			told := rnet.Explain(address)
			require.Equal(t, "no-device", told[len(told)-1].Reason, "%v", told)
		})
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
