package rnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptrace"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
)

// reasonOfLast is why the last dial to the address took its transport.
func reasonOfLast(t *testing.T, address string) string {
	t.Helper()
	told := Explain(address)
	require.NotEmpty(t, told)
	return told[len(told)-1].Reason
}

// busyListener has the software HCA's name of a TCP listener, and its queue in the
// kernel is full.
func busyListener(t *testing.T) (tcp net.Listener, free func()) {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { tcp.Close() })
	name := &unix.SockaddrUnix{Name: "@ramjet/rcm2/" + tcp.Addr().String()}
	fds := make([]int, 2)
	for i := range fds {
		fds[i], err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		require.NoError(t, err)
	}
	require.NoError(t, unix.Bind(fds[0], name))
	require.NoError(t, unix.Listen(fds[0], 0))
	require.NoError(t, unix.Connect(fds[1], name)) // takes the one place there is
	free = func() {
		for i := range fds {
			if fds[i] >= 0 {
				require.NoError(t, unix.Close(fds[i]))
				fds[i] = -1
			}
		}
	}
	t.Cleanup(free)
	return tcp, free
}

// A full queue is waited for as everything else is: no longer than the head start,
// and in the background after that.
func TestFullQueueOfAListenerDoesNotHoldUpTheDial(t *testing.T) {
	leak.Check(t)
	tcp, free := busyListener(t)
	address := tcp.Addr().String()
	for range 2 {
		c, err := (&Dialer{HeadStart: time.Millisecond}).Dial("tcp", address)
		require.NoError(t, err)
		defer c.Close()
		require.IsType(t, (*net.TCPConn)(nil), c)
		awaitStep(t, "the queue is found full", func(at *step) bool { return errors.Is(at.queue, rcm.ErrBusy) })
	}
	require.Equal(t, fallback.Admission.String(), reasonOfLast(t, address))
	_, remembered := negatives.Recall(address)
	require.False(t, remembered)

	acceptAtLast(t, tcp, free)
	hang.Eventually(t, "the session is there", func() bool { return len(liveSessions.list()) == 1 })
	again, err := patient().Dial("tcp", address)
	require.NoError(t, err)
	defer again.Close()
	require.IsType(t, (*Conn)(nil), again)
}

// acceptAtLast frees a listener that is busy, and accepts the session that a dial in the background asks for.
func acceptAtLast(t *testing.T, tcp net.Listener, free func()) {
	t.Helper()
	// Somebody listens at each moment: a dial in the background that found nobody
	// would be over.
	everywhere := netip.AddrPortFrom(netip.IPv4Unspecified(), tcp.Addr().(*net.TCPAddr).AddrPort().Port())
	ln, err := fabrics[0].Listen(everywhere, rcm.ListenConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	free()
	p := newRawPeer(t)
	t.Cleanup(p.close)
	h := p.hello()
	require.NoError(t, p.accept(ln, h.Marshal()), "nobody has dialed again")
}

// A Dialer may be changed for the next dial while a session of the last one is being set up.
func TestSetUpInTheBackgroundDoesNotLookAtTheDialer(t *testing.T) {
	leak.Check(t)
	tcp, free := busyListener(t)
	d := &Dialer{HeadStart: time.Millisecond}
	c, err := d.Dial("tcp", tcp.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	d.Dedicated = true
	acceptAtLast(t, tcp, free)
	var there []*session // for half a second
	hang.Eventually(t, "the session is there", func() bool {
		there = liveSessions.list()
		return len(there) == 1
	})
	require.False(t, there[0].mux.Config().Alone)
}

// Who traces a dial is told of the connection that it came to, after the failure of TCP.
func TestTraceIsToldOfASessionThatWasLate(t *testing.T) {
	leak.Check(t)
	address := closedAddress(t)
	ln, err := fabrics[0].Listen(netip.MustParseAddrPort(address), rcm.ListenConfig{})
	require.NoError(t, err)
	defer ln.Close()
	p := newRawPeer(t)
	defer p.close()
	h := p.hello()
	refusedByTCP := make(chan struct{})
	accepted := hang.Start(t, func() {
		<-refusedByTCP // before that the session would be in time
		assert.NoError(t, p.accept(ln, h.Marshal()))
	})
	var got calls
	ctx := httptrace.WithClientTrace(got.traced(t.Context()), &httptrace.ClientTrace{ConnectDone: func(_, _ string, err error) {
		if err != nil {
			close(refusedByTCP)
		}
	}})
	c, err := (&Dialer{HeadStart: -1}).DialContext(ctx, "tcp", address)
	accepted()
	require.NoError(t, err)
	defer c.Close()
	require.IsType(t, (*Conn)(nil), c)
	refused := os.NewSyscallError("connect", syscall.ECONNREFUSED).Error()
	require.Equal(t, []string{
		"start tcp " + address, "done tcp " + address + ": " + refused, "start tcp " + address, "done tcp " + address,
	}, got.list)
}

// However long the head start is, a dial that would be in time over TCP is in time.
func TestDialLeavesTimeForTCP(t *testing.T) {
	leak.Check(t)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer tcp.Close()
	ln, err := fabrics[0].Listen(tcp.Addr().(*net.TCPAddr).AddrPort(), rcm.ListenConfig{})
	require.NoError(t, err)
	defer ln.Close()
	c, err := (&Dialer{HeadStart: hang.Time, Timeout: 2 * time.Second}).Dial("tcp", tcp.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	require.IsType(t, (*net.TCPConn)(nil), c)
}

// A dial that ends while it waits for a session does not come to the server over TCP after that.
func TestADialThatIsCanceledDoesNotConnect(t *testing.T) {
	leak.Check(t)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer tcp.Close()
	ln, err := fabrics[0].Listen(tcp.Addr().(*net.TCPAddr).AddrPort(), rcm.ListenConfig{})
	require.NoError(t, err)
	defer ln.Close()
	ctx, cancel := context.WithCancel(t.Context())
	dialed := hang.Start(t, func() {
		_, err := (&Dialer{HeadStart: hang.Time}).DialContext(ctx, "tcp", tcp.Addr().String())
		assert.ErrorIs(t, err, context.Canceled)
	})
	hang.Eventually(t, "the dial waits", func() bool { return ln.Stats().Requests > 0 })
	cancel()
	dialed()
	nobodyElse(t, tcp)
}

// One of several addresses must not use up the time for those after it.
func TestAddressThatDoesNotAnswerLeavesTimeForTheNext(t *testing.T) {
	address := closedAddress(t)
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	silent, err := samehost.Listen(samehost.ListenConfig{Type: unix.SOCK_SEQPACKET, Name: "@ramjet/rcm2/" + address, Backlog: 8})
	require.NoError(t, err)
	defer silent.Close()
	ln, err := (&ListenConfig{Transport: Soft}).Listen(t.Context(), "tcp", "[::1]:"+port)
	require.NoError(t, err)
	defer ln.Close()
	c, err := (&Dialer{Transport: Soft, Timeout: 3 * leastPart}).Dial("tcp", ":"+port)
	require.NoError(t, err)
	require.Equal(t, ln.Addr(), c.RemoteAddr())
	c.Close()
}

// Of several addresses the dial tells of that at which most was found.
func TestAnAddressWhereNobodyListensDoesNotHideTheOneThatRefused(t *testing.T) {
	ln, err := (&ListenConfig{Peers: func(PeerProcess) bool { return false }}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(t, err)
	_, err = (&Dialer{Transport: Soft}).Dial("tcp", ":"+port) // at 127.0.0.1, then at ::1
	require.Equal(t, fallback.PeerDenied, fallback.Classify(err), err)
}

// A listener that does not answer in time may do so in the next moment: dials take
// TCP for as long as it has not, and no longer, and do not ask it again.
func TestTimeoutOfAListenerOnThisHostIsNotRemembered(t *testing.T) {
	leak.Check(t)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer tcp.Close()
	go func() {
		for { // so that no dial finds the backlog full
			c, err := tcp.Accept() // ended by Close
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	address := tcp.Addr().String()
	ln, err := fabrics[0].Listen(tcp.Addr().(*net.TCPAddr).AddrPort(), rcm.ListenConfig{})
	require.NoError(t, err)
	defer ln.Close()
	d := Dialer{HeadStart: time.Millisecond}
	for i := range 5 {
		c, err := d.Dial("tcp", address)
		require.NoError(t, err)
		defer c.Close()
		require.IsType(t, (*net.TCPConn)(nil), c)
		if i == 0 {
			awaitStep(t, "the listener is asked", func(at *step) bool { return at.ran != nil })
			continue
		}
		require.Equal(t, fallback.HandshakeTimeout.String(), reasonOfLast(t, address))
		reason, remembered := negatives.Recall(address)
		require.False(t, remembered, reason)
	}
	accepted := 0
	accept := func() {
		p := newRawPeer(t)
		t.Cleanup(p.close)
		h := p.hello()
		require.NoError(t, p.accept(ln, h.Marshal()))
		accepted++
	}
	accept()
	require.EqualValues(t, 1, ln.Stats().Requests, "five dials, one question")
	hang.Eventually(t, "a dial finds the session", func() bool {
		c, err := d.Dial("tcp", address)
		require.NoError(t, err)
		defer c.Close()
		_, ok := c.(*Conn)
		if !ok && ln.Stats().Requests > uint64(accepted) {
			accept() // the session before had no stream for its idle time, and has ended
		}
		return ok
	})
}

// silent is the fabric of a network on which nobody answers until the test is over.
type silent struct {
	rcm.Fabric
	asked chan netip.AddrPort
	over  chan struct{}
}

func (s *silent) Name() string                   { return "silent" }
func (s *silent) Reaches(a netip.AddrPort) error { return nil }

func (s *silent) Resolve(_ context.Context, addr netip.AddrPort) (rcm.Route, error) {
	s.asked <- addr
	<-s.over
	return nil, rcm.ErrTimeout
}

// gated is the fabric of a network whose routes are there when the test lets them be.
type gated struct {
	rcm.Fabric
	open chan struct{}
}

// gate makes it the only fabric of the test.
func gate(t *testing.T) *gated {
	network := &gated{fabrics[0].Fabric, make(chan struct{})}
	usual := fabrics
	fabrics = []fabric{{fallback.RDMA, network, nil}}
	t.Cleanup(func() { fabrics = usual })
	return network
}

func (g *gated) Reaches(netip.AddrPort) error { return nil }

func (g *gated) Resolve(ctx context.Context, addr netip.AddrPort) (rcm.Route, error) {
	<-g.open
	return g.Fabric.Resolve(ctx, addr)
}

// A session that comes while TCP connects is no failure to be remembered.
func TestASessionThatComesWhileTCPConnectsIsForTheNextDial(t *testing.T) {
	leak.Check(t)
	network := gate(t)
	ln := carrier{}.listen(t)
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{ConnectDone: func(string, string, error) {
		close(network.open)
		var late []*pendingSession
		pool.mu.Lock()
		for _, ps := range pool.sessions {
			late = append(late, ps)
		}
		pool.mu.Unlock()
		for _, ps := range late {
			<-ps.ready // ended by setUp
		}
	}})
	c, err := (&Dialer{HeadStart: -1}).DialContext(ctx, "tcp", ln.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	require.IsType(t, (*net.TCPConn)(nil), c)
	next, err := (&Dialer{HeadStart: hang.Time}).Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer next.Close()
	require.IsType(t, (*Conn)(nil), next)
}

// Nor is it one for those who waited for it under another name.
func TestASessionThatComesLateIsForAllWhoWaitedForIt(t *testing.T) {
	leak.Check(t)
	network := gate(t)
	ln := carrier{}.listen(t)
	dialers := []*Dialer{{HeadStart: -1}, {HeadStart: -1, Resolver: new(net.Resolver)}}
	dial := func(d *Dialer) net.Conn {
		c, err := d.Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	nameFor := func(d *Dialer) string { return raceAt(t, ln.Addr().String(), d).a.remembered() }
	for _, d := range dialers {
		require.IsType(t, (*net.TCPConn)(nil), dial(d))
		for range 2 { // it takes longer than the test to be over by itself
			negatives.Remember(nameFor(d), fallback.HandshakeTimeout, time.Now())
		}
	}
	close(network.open)
	for _, d := range dialers {
		name := nameFor(d)
		hang.Eventually(t, "the end of the memory", func() bool {
			_, remembered := negatives.Recall(name)
			return !remembered
		})
		require.IsType(t, (*Conn)(nil), dial(d))
	}
}

// raceAt begins a dial that package net has not come to connect.
func raceAt(t *testing.T, address string, d *Dialer) *tcpRace {
	t.Helper()
	set, err := new(Dialer).settings()
	require.NoError(t, err)
	a := &attempt{d: d, set: *set, network: "tcp", address: address, begun: time.Now()}
	return &tcpRace{a: a, stop: func() {}, over: make(chan struct{})}
}

func TestLooksAtTwoAddressesDoNotWaitForEachOther(t *testing.T) {
	leak.Check(t)
	ln := carrier{}.listen(t)
	network := &silent{asked: make(chan netip.AddrPort, 1), over: make(chan struct{})}
	usual := fabrics
	fabrics = []fabric{usual[0], {fallback.RDMA, network, nil}}
	defer func() { fabrics = usual }()
	b := raceAt(t, "name:1", &Dialer{HeadStart: hang.Time})
	ctx, cancel := context.WithCancel(t.Context())
	first := hang.Start(t, func() { assert.ErrorIs(t, b.before(ctx, "tcp6", "[2001:db8::1]:1", nil), errTaken) })
	require.Equal(t, "[2001:db8::1]:1", (<-network.asked).String())
	second := hang.Start(t, func() { assert.ErrorIs(t, b.before(ctx, "tcp4", ln.Addr().String(), nil), errTaken) })
	second()
	require.NotNil(t, b.conn)
	b.conn.Close()
	cancel()
	first()
	close(network.over)

	// A trace is told of the one as connected, and of the other as given up.
	var told error
	traced := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{ConnectDone: func(_, _ string, err error) { told = err }})
	trace := httptrace.ContextClientTrace(b.hideTaken(traced))
	taken := &net.OpError{Op: "dial", Net: "tcp", Err: errTaken}
	trace.ConnectDone("tcp", ln.Addr().String(), taken)
	require.NoError(t, told)
	trace.ConnectDone("tcp", "[2001:db8::1]:1", taken)
	require.ErrorIs(t, told, context.Canceled)
}

// Package net does not wait for the address that was slower, where the program's Control may still run.
func TestDialThatIsOverTakesNothingIn(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	raw, err := ln.(syscall.Conn).SyscallConn()
	require.NoError(t, err)
	b := raceAt(t, ln.Addr().String(), &Dialer{Control: settingAt(unix.SOL_SOCKET, unix.SO_PRIORITY, 3)})
	b.done = true
	require.ErrorIs(t, b.before(t.Context(), "tcp4", ln.Addr().String(), raw), errTaken)
	require.NoError(t, b.err)
}

// Package net would be connected to the first address at once, and would not come to
// the second.
func TestListenerOfThisHostIsWaitedForBeforeAnotherAddress(t *testing.T) {
	leak.Check(t)
	tcp, err := net.Listen("tcp", "[::1]:0")
	require.NoError(t, err)
	defer tcp.Close()
	ln, err := fabrics[0].Listen(tcp.Addr().(*net.TCPAddr).AddrPort(), rcm.ListenConfig{})
	require.NoError(t, err)
	defer ln.Close()
	b := raceAt(t, tcp.Addr().String(), &Dialer{HeadStart: 50 * time.Millisecond, FallbackDelay: 1})
	first := hang.Start(t, func() { assert.NoError(t, b.before(t.Context(), "tcp6", tcp.Addr().String(), nil), "to TCP") })
	hang.Eventually(t, "the first has found a listener", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.here != nil
	})
	assert.NoError(t, b.before(t.Context(), "tcp4", closedAddress(t), nil), "to TCP")
	b.mu.Lock()
	assert.NotEmpty(t, b.late, "the second did not wait")
	b.mu.Unlock()
	first()
	close(b.over)
	b.work.Wait()
}

// The same words may stand for another server.
func TestWhatIsRememberedOfOneServerSaysNothingOfAnother(t *testing.T) {
	ln6, ln4, port := listenBoth(t, Listen, net.Listen)
	for range 2 { // what is found twice is remembered
		c, err := Dial("tcp4", ":"+port)
		require.NoError(t, err)
		require.IsType(t, (*net.TCPConn)(nil), c)
		c.Close()
		s, err := ln4.Accept()
		require.NoError(t, err)
		s.Close()
	}
	c, err := patient().Dial("tcp6", ":"+port)
	require.NoError(t, err)
	defer c.Close()
	require.IsType(t, (*Conn)(nil), c)
	nobodyElse(t, ln4)
	s, err := ln6.Accept()
	require.NoError(t, err)
	s.Close()

	var names []string
	for _, resolver := range []*net.Resolver{nil, {PreferGo: true}, {PreferGo: true}} {
		a := attempt{d: &Dialer{Resolver: resolver}, network: "tcp", address: "name:1"}
		require.NotContains(t, names, a.remembered())
		names = append(names, a.remembered())
	}
}

// Clients that start at the same moment are served one after the other, and none of
// them settles for TCP.
func TestManyProcessesThatDialAtOnceAllGetStreams(t *testing.T) {
	clients := orRaced(100, 30)
	ln := carrier{}.listen(t)
	served := hang.Start(t, func() {
		for { // ended by Close
			s, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(s, s)
				s.Close()
			}()
		}
	})
	gate, err := os.Create(t.TempDir() + "/gate")
	require.NoError(t, err)
	defer gate.Close()
	require.NoError(t, unix.Flock(int(gate.Fd()), unix.LOCK_EX))
	children := make([]*roles.Process, clients)
	for i := range children {
		children[i] = roles.Start(t, "dialattheshot", ln.Addr().String(), gate.Name())
	}
	for _, child := range children {
		require.Equal(t, "ready", child.Line(t))
	}
	require.NoError(t, unix.Flock(int(gate.Fd()), unix.LOCK_UN))
	came := make(map[string]int)
	for _, child := range children {
		came[child.Line(t)]++
	}
	require.Equal(t, map[string]int{"*rnet.Conn": clients}, came)
	for _, child := range children {
		child.Stop()
	}
	ln.Close()
	served()
}

func init() { roles.Add("dialattheshot", dialAtTheShot) }

// dialAtTheShot dials when its parent lets go of a file, and uses the connection.
func dialAtTheShot(args []string) error {
	gate, err := os.Open(args[1])
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if err := unix.Flock(int(gate.Fd()), unix.LOCK_SH); err != nil { // ended by the parent
		return err
	}
	// what else than time keeps it on TCP?
	c, err := (&Dialer{HeadStart: hang.Time}).Dial("tcp", args[0])
	if err != nil {
		return err
	}
	if err := useEcho(c); err != nil {
		return err
	}
	said := typeName(c)
	if _, ok := c.(*Conn); !ok {
		told := Explain(args[0])
		said += fmt.Sprint(" ", told[len(told)-1], ", after ", told[len(told)-1].Took)
	}
	fmt.Println(said)
	return c.Close()
}
