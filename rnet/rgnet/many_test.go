package rgnet

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

// The roles "gnet" and "rnet" are crowds of clients: gnet's own event handlers
// over TCP, and goroutines with a stream of the carrier each. Each client sends
// messages and waits for their echo, one after the other:
// CARRIER ADDRESS CLIENTS MESSAGES.
func init() {
	roles.Add("gnet", func(args []string) error {
		clients, messages := crowdOf(args)
		p := &pingers{t: new(failed)}
		p.done.Add(clients)
		client, err := gnet.NewClient(p, gnet.WithLogger(quiet{}))
		if err == nil {
			err = client.Start()
		}
		for i := 0; i < clients && err == nil; i++ {
			_, err = client.DialContext("tcp", args[1], messages)
		}
		if err != nil {
			return err
		}
		p.done.Wait() // ended by the last answers
		fmt.Println("done")
		return client.Stop()
	})
	roles.Add("rnet", func(args []string) error {
		clients, messages := crowdOf(args)
		k, err := carrierNamed(args[0])
		if err != nil {
			return err
		}
		results := make(chan error, clients)
		for range clients {
			c, err := k.dialer().Dial("tcp", args[1])
			if err != nil {
				return err
			}
			stream, ok := c.(*rnet.Conn)
			if !ok || stream.Stats().Transport != k.cfg.Transport {
				return fmt.Errorf("a connection is %T", c)
			}
			go func() {
				defer c.Close()
				results <- pings(c, messages)
			}()
		}
		for range clients {
			if err := <-results; err != nil {
				return err
			}
		}
		fmt.Println("done")
		return nil
	})
}

func crowdOf(args []string) (clients, messages int) {
	clients, _ = strconv.Atoi(args[2])
	messages, _ = strconv.Atoi(args[3])
	return clients, messages
}

func pings(c io.ReadWriter, messages int) error {
	var answer [len(request)]byte
	for i := range messages {
		if _, err := c.Write(request[:]); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		if _, err := io.ReadFull(c, answer[:]); err != nil {
			return fmt.Errorf("answer %d: %w", i, err)
		}
	}
	return nil
}

// gathering is an echo that answers nobody before all have asked.
type gathering struct {
	echo
	all chan struct{} // closed then

	mu      sync.Mutex
	missing int         // guarded by mu
	waiting []gnet.Conn // that have asked, guarded by mu
	begun   bool        // guarded by mu
}

func (h *gathering) OnTraffic(c gnet.Conn) gnet.Action {
	h.mu.Lock()
	begun := h.begun
	if !begun && c.Context() == nil && c.InboundBuffered() >= len(request) {
		c.SetContext(h)
		h.waiting = append(h.waiting, c)
		if h.missing--; h.missing == 0 {
			close(h.all)
		}
	}
	h.mu.Unlock()
	if begun {
		return h.echo.OnTraffic(c)
	}
	return gnet.None // what it has sent stays where it is
}

// begin answers all who have asked, and from here on everybody at once.
func (h *gathering) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.begun = true
	for _, c := range h.waiting {
		c.Wake(nil)
	}
}

// None of a thousand TCP clients and a thousand streams, each of a process of
// its own, is answered before all of them are there.
func TestAThousandTCPClientsAndAThousandStreamsAreServedAtOnce(t *testing.T) {
	const each, messages = 1000, 5
	k := streamCarriers[0]
	k.need(t)
	before := rnet.ReadStats()
	h := &gathering{all: make(chan struct{}), missing: 2 * each}
	s := auto.serve(t, h, gnet.WithNumEventLoop(2))
	tcp := roles.Start(t, "gnet", "tcp", s.address, strconv.Itoa(each), strconv.Itoa(messages))
	streams := roles.Start(t, "rnet", k.name, s.address, strconv.Itoa(each), strconv.Itoa(messages))
	select { // ended by the last request, or the clock
	case <-h.all:
	case <-time.After(3 * hang.Time):
		h.mu.Lock()
		defer h.mu.Unlock()
		t.Fatalf("%d of %d have not asked", h.missing, 2*each)
	}

	own := 0
	for _, c := range h.waiting {
		if ownConn(c) {
			own++
		}
	}
	require.Equal(t, each, own, "streams among the connections that the handler sees")
	require.Equal(t, 2*each, CountConnections(s.engine))
	count := 0
	for _, session := range rnet.ReadStats().Sessions {
		if session.PeerPID == streams.Cmd.Process.Pid {
			require.Equal(t, k.cfg.Transport, session.Transport)
			require.False(t, session.Dialed)
			count += session.Streams
		}
		require.NotEqual(t, tcp.Cmd.Process.Pid, session.PeerPID)
	}
	require.Equal(t, each, count, "streams of the other process's sessions")

	h.begin()
	require.Equal(t, "done", tcp.Line(t))
	require.Equal(t, "done", streams.Line(t))
	in, out := carried(k, rnet.ReadStats())
	in0, out0 := carried(k, before)
	require.EqualValues(t, each*messages*len(request), in-in0, "bytes that came over streams")
	require.EqualValues(t, each*messages*len(request), out-out0)
}

// What 10,000 streams share, sessions and wake sockets, is what costs descriptors.
func TestTenThousandStreamsNeedAHandfulOfDescriptors(t *testing.T) {
	const streams, handful = 10_000, 64 // with those of the engine, its listeners, and the session that found it
	k := streamCarriers[0]
	k.need(t)
	h := &gathering{all: make(chan struct{}), missing: streams}
	before := descriptors(t)
	s := k.serve(t, h, gnet.WithNumEventLoop(2))
	peer := roles.Start(t, "rnet", k.name, s.address, strconv.Itoa(streams), "1")
	select { // ended by the last request, or the clock
	case <-h.all:
	case <-time.After(3 * hang.Time):
		t.Fatal("not all have asked")
	}
	require.Equal(t, streams, CountConnections(s.engine))
	took := descriptors(t) - before
	require.LessOrEqual(t, took, handful)
	h.begin()
	require.Equal(t, "done", peer.Line(t))
	t.Logf("%d descriptors for %d streams", took, streams)
}

func descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(list)
}

// carried returns how many bytes all sessions over the carrier's device have
// had.
func carried(k carrier, st rnet.Stats) (in, out uint64) {
	for _, d := range st.Devices {
		if d.Transport == k.cfg.Transport && (k.cfg.Device == "" || d.Device == k.cfg.Device) {
			in, out = in+d.BytesIn, out+d.BytesOut
		}
	}
	return in, out
}

// overTCPDials returns how many dials of package rnet came to TCP.
func overTCPDials(st rnet.Stats) (n uint64) {
	for _, d := range st.Dials {
		if d.Transport == rnet.TCP {
			n += d.Dials
		}
	}
	return n
}

// What a carrier is called is what it goes over: the statistics of its device
// have each byte, and those of no other.
func TestStreamsGoOverTheDeviceThatWasAskedFor(t *testing.T) {
	const rounds, size = 50, 300
	for _, k := range streamCarriers {
		t.Run(k.name, func(t *testing.T) {
			s := k.serve(t, new(echo))
			before := rnet.ReadStats()
			echoes(t, k.dial(t, s.address), rounds, size)
			after := rnet.ReadStats()
			for _, d := range after.Devices {
				own := carrier{cfg: Config{Transport: d.Transport, Device: d.Device}}
				in0, out0 := carried(own, before)
				moved := [2]uint64{d.BytesIn - in0, d.BytesOut - out0}
				if d.Transport == k.cfg.Transport && (k.cfg.Device == "" || k.cfg.Device == d.Device) {
					require.Equal(t, [2]uint64{2 * rounds * size, 2 * rounds * size}, moved, "both ends are here")
				} else {
					require.Zero(t, moved, "%s %s", d.Transport, d.Device)
				}
			}
			require.Equal(t, overTCPDials(before), overTCPDials(after), "a dial fell back")
			require.NotEmpty(t, after.Devices)
		})
	}
}
