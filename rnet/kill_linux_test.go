package rnet

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
)

func init() {
	roles.Add("caller", caller)
	roles.Add("mute", mute)
}

// caller dials an address once for each mode, tells the mode, and behaves.
func caller(args []string) error {
	k, err := carrierNamed(args[0])
	if err != nil {
		return err
	}
	defer k.install()()
	for _, mode := range []byte(args[2]) {
		c, err := k.dialer().Dial("tcp", args[1])
		if err != nil {
			return err
		}
		if _, err := c.Write([]byte{mode}); err != nil {
			return err
		}
		go traffic.Behave(c, mode)
	}
	fmt.Println("ready")
	select {} // ended by the kill
}

// mute takes the name of an address, and requests, and answers none.
func mute(args []string) error {
	ln, err := softcm.New(softcm.Config{}).Listen(netip.MustParseAddrPort(args[0]), rcm.ListenConfig{})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := ln.Accept(ctxBackground); err != nil {
		return err
	}
	fmt.Println("asked")
	select {} // ended by the kill
}

func TestKilledPeerIsNoticed(t *testing.T) {
	leak.Check(t)
	over(t, []carrier{overSoft, {name: "soft-efficient", transport: Soft, profile: Efficient}, overBounceBuffer}, func(t *testing.T, k carrier) {
		ln := k.listen(t)
		var delays []time.Duration
		kills := times(16, 334) // each of three carriers: 50 and 1000 in all
		for i := range kills {
			var b traffic.Waiters
			var conns []net.Conn
			var child *roles.Process
			if i%2 == 0 { // it listens
				child = roles.Start(t, "target", k.name)
				address := child.Line(t)
				for _, mode := range []byte(traffic.AllModes) {
					c, err := k.dialer().Dial("tcp", address)
					require.NoError(t, err)
					_, err = c.Write([]byte{mode})
					require.NoError(t, err)
					conns = append(conns, c)
					b.Use(t, c, mode)
				}
			} else { // it dials
				child = roles.Start(t, "caller", k.name, ln.Addr().String(), traffic.AllModes)
				for range traffic.AllModes {
					c, err := ln.Accept()
					require.NoError(t, err)
					var mode [1]byte
					_, err = io.ReadFull(c, mode[:])
					require.NoError(t, err)
					conns = append(conns, c)
					b.Use(t, c, mode[0])
				}
			}
			time.Sleep(time.Duration(i%8) * time.Millisecond) // in the middle of something
			killed := time.Now()
			child.Kill()
			hang.Start(t, b.Wait)()
			for _, at := range b.Told() {
				delays = append(delays, at.Sub(killed))
			}
			for _, c := range conns {
				c.Close()
			}
			child.Stop()
			if t.Failed() {
				return
			}
		}
		slices.Sort(delays)
		t.Logf("%d kills, from the kill to the error: median %v, 99%% %v, most %v", kills,
			delays[len(delays)/2], delays[len(delays)*99/100], delays[len(delays)-1])
		k.connect(t, ln) // the listener has survived all of them
	})
}

// The handler of a Logger is the program's. Who polls, and finds that the peer is gone, may poll for others.
func TestASlowLoggerDoesNotKeepAKilledPeerSecret(t *testing.T) {
	h := stuckHandler{begun: make(chan struct{}), end: make(chan struct{})}
	ln, err := (&ListenConfig{Transport: Soft, Logger: slog.New(h)}).Listen(ctxBackground, "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	child := roles.Start(t, "caller", overSoft.name, ln.Addr().String(), string([]byte{traffic.Sink}))
	defer child.Stop()
	c, err := ln.Accept()
	require.NoError(t, err)
	defer c.Close()
	_, err = io.ReadFull(c, make([]byte, 1))
	require.NoError(t, err)
	require.Equal(t, "ready", child.Line(t))
	await := hang.Start(t, func() {
		_, err := c.Read(make([]byte, 1))
		assert.Error(t, err)
	})
	child.Kill()
	await()
	<-h.begun // ended by the handler
	close(h.end)
}

// stuckHandler is the handler of a Logger that does not return from the end of a session.
type stuckHandler struct{ begun, end chan struct{} }

func (stuckHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h stuckHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "rnet: session failed" {
		close(h.begun)
		<-h.end // ended by the test
	}
	return nil
}

func (h stuckHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h stuckHandler) WithGroup(string) slog.Handler      { return h }

func TestDialFallsBackWhenItsPeerIsKilled(t *testing.T) {
	leak.Check(t)
	for range times(5, 50) {
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		address := tcp.Addr().String()
		child := roles.Start(t, "mute", address)
		require.Equal(t, "ready", child.Line(t))
		var c net.Conn
		await := hang.Start(t, func() {
			// The head start is long, so that it is the death that ends the dial.
			c, err = (&Dialer{HeadStart: time.Hour}).Dial("tcp", address)
		})
		require.Equal(t, "asked", child.Line(t))
		killed := time.Now()
		child.Kill()
		await()
		t.Log("fell back after", time.Since(killed))
		require.NoError(t, err)
		require.IsType(t, (*net.TCPConn)(nil), c)
		told := Explain(address)
		require.Equal(t, "peer-died", told[len(told)-1].Reason)
		c.Close()
		tcp.Close()
		child.Stop()
	}
}

func TestForcedDialFailsWhenItsPeerIsKilled(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer tcp.Close()
	child := roles.Start(t, "mute", tcp.Addr().String())
	require.Equal(t, "ready", child.Line(t))
	await := hang.Start(t, func() {
		_, err := (&Dialer{Transport: Soft}).Dial("tcp", tcp.Addr().String())
		assert.ErrorIs(t, err, syscall.ECONNRESET)
	})
	require.Equal(t, "asked", child.Line(t))
	child.Kill()
	await()
}

// What a process wrote before it was killed has arrived, and is read before
// the error.
func TestLastWordsOfAKilledPeerAreRead(t *testing.T) {
	leak.Check(t)
	ln := overSoft.listen(t)
	for range times(5, 50) {
		child := roles.Start(t, "lastwords", ln.Addr().String())
		c, err := ln.Accept()
		require.NoError(t, err)
		require.Equal(t, "written", child.Line(t))
		child.Kill()
		child.Stop()
		got, err := io.ReadAll(c)
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.NoError(t, traffic.Check(got, 7, 0))
		require.Equal(t, 300<<10, len(got))
		c.Close()
	}
}

func init() { roles.Add("lastwords", lastWords) }

func lastWords(args []string) error {
	c, err := overSoft.dialer().Dial("tcp", args[0])
	if err != nil {
		return err
	}
	if _, err := c.Write(traffic.Bytes(7, 300<<10)); err != nil {
		return err
	}
	fmt.Println("written")
	select {} // ended by the kill
}

// A process that is stopped (a debugger, a full machine) is not dead: it is
// waited for, and new connections go over TCP as far as TCP goes.
func TestStoppedPeerIsWaitedFor(t *testing.T) {
	leak.Check(t)
	child := roles.Start(t, "target", "auto")
	address := child.Line(t)
	negatives.Forget(address) // the port may have been another test's
	c, err := (&Dialer{HeadStart: hang.Time}).Dial("tcp", address)
	require.NoError(t, err)
	require.IsType(t, (*Conn)(nil), c)
	defer c.Close()
	_, err = c.Write([]byte{traffic.Echo})
	require.NoError(t, err)
	require.NoError(t, traffic.RoundTrip(c))

	require.NoError(t, child.Cmd.Process.Signal(syscall.SIGSTOP))
	require.NoError(t, unix.Waitid(unix.P_PID, child.Cmd.Process.Pid, nil, unix.WSTOPPED, nil)) // until then it may serve
	data := traffic.Bytes(1, 4<<20)
	c.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	n, err := c.Write(data)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	other, err := (&Dialer{HeadStart: 10 * time.Millisecond, Limits: Limits{Window: 1 << 20}}).Dial("tcp", address)
	require.NoError(t, err)
	require.IsType(t, (*net.TCPConn)(nil), other)
	defer other.Close()

	require.NoError(t, child.Cmd.Process.Signal(syscall.SIGCONT))
	c.SetDeadline(time.Time{})
	await := hang.Start(t, func() {
		_, err := c.Write(data[n:])
		assert.NoError(t, err)
	})
	got := make([]byte, len(data))
	_, err = io.ReadFull(c, got)
	require.NoError(t, err)
	require.NoError(t, traffic.Check(got, 1, 0))
	await()
	_, err = other.Write([]byte{traffic.Echo})
	require.NoError(t, err)
	require.NoError(t, traffic.RoundTrip(other))
}
