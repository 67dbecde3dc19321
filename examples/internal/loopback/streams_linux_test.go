package loopback_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/examples/internal/loopback"
	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/internal/freeport"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/rgnet"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// servers are the echo servers that a process of their own runs; each says
// where it listens when it serves streams, if the environment allows any.
var servers = map[string]func() (address string, err error){
	"rnet":  serveGoroutines,
	"rgnet": serveHandlers,
}

// serverVariable makes the test binary one of them.
const serverVariable = "RAMJET_TEST_SERVER"

func TestMain(m *testing.M) {
	serve, ok := servers[os.Getenv(serverVariable)]
	if !ok {
		os.Exit(m.Run())
	}
	address, err := serve()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(child.Announcement + address)
	io.Copy(io.Discard, os.Stdin) // ended by the parent's death, or its wish
}

func serveGoroutines() (string, error) {
	ln, err := rnet.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go func() { // ends with the process
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	return ln.Addr().String(), nil
}

type echo struct {
	gnet.BuiltinEventEngine
	once sync.Once
	up   chan struct{} // closed when the engine serves streams too
}

func (h *echo) OnTick() (time.Duration, gnet.Action) {
	h.once.Do(func() { close(h.up) })
	return time.Hour, gnet.None
}

func (h *echo) OnTraffic(c gnet.Conn) gnet.Action {
	p, _ := c.Next(-1)
	c.Write(p)
	return gnet.None
}

func serveHandlers() (string, error) {
	address, err := freeport.Address("127.0.0.1")
	if err != nil {
		return "", err
	}
	h := &echo{up: make(chan struct{})}
	ended := make(chan error, 1)
	// ends with the process
	go func() { ended <- rgnet.Run(h, "tcp://"+address, gnet.WithTicker(true)) }()
	// ended by the engine's first tick, or its failure
	select {
	case <-h.up:
		return address, nil
	case err := <-ended:
		return "", err
	}
}

// startServer starts one of the servers, which ends with the test at the latest,
// also if that is killed.
func startServer(t *testing.T, name string) (address string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), serverVariable+"="+name)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		cmd.Wait() // ended by that
	})
	for lines := bufio.NewScanner(stdout); lines.Scan(); { // ended by the server, or its end
		// gnet has things to say too
		if address, ok := strings.CutPrefix(lines.Text(), child.Announcement); ok {
			return address
		}
	}
	t.Fatal("the server has ended")
	return ""
}

// What each connection of a client sends, and gets back.
const (
	conns = 8
	each  = 2 << 20
	piece = 64 << 10
)

// payload differs from place to place.
var payload = func() []byte {
	p := make([]byte, each)
	for i := range p {
		p[i] = byte(i ^ i>>8*31)
	}
	return p
}()

// clients let the payload go to and fro on each connection, over what the
// environment says.
var clients = map[string]func(t *testing.T, address string){
	"rnet":  exchangeByGoroutines,
	"rgnet": exchangeByHandlers,
}

func exchangeByGoroutines(t *testing.T, address string) {
	var work sync.WaitGroup
	for range conns {
		d := rnet.Dialer{HeadStart: time.Minute} // a TCP dial beside it would be seen
		c, err := d.Dial("tcp", address)
		require.NoError(t, err)
		defer c.Close()
		work.Go(func() {
			_, err := c.Write(payload)
			assert.NoError(t, err)
		})
		work.Go(func() {
			got := make([]byte, each)
			_, err := io.ReadFull(c, got)
			assert.NoError(t, err)
			assert.True(t, bytes.Equal(payload, got))
		})
	}
	work.Wait() // ended by the last byte, or an error
}

// exchanger sends the next piece when the one before has come back.
type exchanger struct {
	gnet.BuiltinEventEngine
	t    *testing.T
	done sync.WaitGroup
}

// position is how much of the payload a connection has got back.
type position struct{ at int }

func (h *exchanger) OnOpen(c gnet.Conn) ([]byte, gnet.Action) { return payload[:piece], gnet.None }

func (h *exchanger) OnTraffic(c gnet.Conn) gnet.Action {
	pos := c.Context().(*position)
	p, err := c.Next(-1)
	assert.NoError(h.t, err)
	if pos.at+len(p) > each || !bytes.Equal(payload[pos.at:pos.at+len(p)], p) {
		assert.Fail(h.t, "wrong bytes", "after %d", pos.at)
		return gnet.Close
	}
	pos.at += len(p)
	switch {
	case pos.at == each:
		return gnet.Close
	case pos.at%piece == 0:
		c.Write(payload[pos.at : pos.at+piece])
	}
	return gnet.None
}

func (h *exchanger) OnClose(c gnet.Conn, err error) gnet.Action {
	assert.Equal(h.t, each, c.Context().(*position).at, "%v", err)
	h.done.Done()
	return gnet.None
}

func exchangeByHandlers(t *testing.T, address string) {
	h := &exchanger{t: t}
	client, err := rgnet.NewClient(h)
	require.NoError(t, err)
	require.NoError(t, client.Start())
	defer client.Stop()
	for range conns {
		h.done.Add(1)
		_, err := client.DialContext("tcp", address, new(position))
		require.NoError(t, err)
	}
	h.done.Wait() // ended by the last byte, or the end of the connections
}

// tooSlow reports whether a dial went over TCP because the machine was busy for longer than its head start.
func tooSlow(d rnet.Decision) bool { return errors.Is(d.Err, fallback.ErrTooSlow) }

// Programs that say nothing of transports: not one byte goes over TCP, nor would
// it go unnoticed, as the same programs show when the environment says TCP.
func TestStreamsStayOffTheLoopbackInterface(t *testing.T) {
	if !loopback.Alone(t) {
		return
	}
	for name := range servers {
		for _, over := range []rnet.Transport{rnet.Auto, rnet.TCP} {
			t.Run(name+" over "+string(over), func(t *testing.T) {
				t.Setenv("RNET_TRANSPORT", string(over))
				address := startServer(t, name)
				begin := loopback.Bytes(t)
				clients[name](t, address)
				counted := loopback.Bytes(t) - begin
				t.Logf("%d bytes of payload both ways, %d went over the loopback interface", 2*conns*each, counted)
				if over == rnet.TCP {
					require.Greater(t, counted, int64(2*conns*each))
				} else if !slices.ContainsFunc(rnet.Explain(address), tooSlow) {
					require.Zero(t, counted)
				}
			})
		}
	}
}
