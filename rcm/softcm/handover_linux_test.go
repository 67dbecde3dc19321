package softcm

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// mustListen listens, and closes with the test.
func mustListen(t *testing.T, f rcm.Fabric, addr netip.AddrPort, cfg rcm.ListenConfig) *listener {
	t.Helper()
	l, err := f.Listen(addr, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l.(*listener)
}

// nextOf has f wait for the place of a listener, from now on.
func nextOf(t *testing.T, f rcm.Fabric, addr netip.AddrPort, cfg rcm.ListenConfig) func() *listener {
	t.Helper()
	next, err := f.(*fabric).Await(addr, cfg)
	require.NoError(t, err)
	type place struct {
		rcm.Listener
		err error
	}
	had := make(chan place, 1)
	ctx := cmtest.Within(t)
	go func() { // ends with the place, or ctx
		l, err := next(ctx)
		had <- place{l, err}
	}()
	return func() *listener {
		p := <-had
		require.NoError(t, p.err)
		t.Cleanup(func() { p.Close() })
		return p.Listener.(*listener)
	}
}

// While listeners hand their place on, one after the other, each look finds one. That one may
// be about to leave, and then says so.
func TestThereIsAlwaysAListenerWhenOneHandsOver(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::"} {
		addr := cmtest.At(host, cmtest.FreePort(t))
		f := New(Config{})
		l := mustListen(t, f, addr, rcm.ListenConfig{})
		target := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), addr.Port())
		ctx, stop := context.WithCancel(t.Context())
		looked := make(chan error)
		var looks atomic.Int64
		go func() {
			for ctx.Err() == nil {
				r, err := f.Resolve(ctx, target)
				if err == nil {
					r.Close()
					looks.Add(1)
					time.Sleep(100 * time.Microsecond) // the queue has an end
				} else if ctx.Err() == nil && !errors.Is(err, rcm.ErrBusy) {
					looked <- err
					return
				}
			}
			looked <- nil
		}()
		for range 10 {
			next := nextOf(t, f, addr, rcm.ListenConfig{})
			require.True(t, l.HandOver())
			before := looks.Load()
			require.NoError(t, l.Close())
			l = next()
			hang.Eventually(t, "a look", func() bool { return looks.Load() > before })
		}
		stop()
		require.NoError(t, <-looked)
		require.NoError(t, l.Close())
	}
}

// Who has the place handed over when it is about to leave itself hands it on: each look finds
// a listener, however soon that is.
func TestThePlaceOutlivesWhoLeavesBeforeHavingIt(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	f := New(Config{})
	looking, stop := context.WithCancel(t.Context())
	looked := make(chan error)
	var place rcm.Listener = mustListen(t, f, addr, rcm.ListenConfig{})
	go func() {
		for looking.Err() == nil {
			r, err := f.Resolve(looking, addr)
			if err == nil {
				r.Close()
				time.Sleep(100 * time.Microsecond) // the queue has an end
			} else if looking.Err() == nil && !errors.Is(err, rcm.ErrBusy) {
				looked <- err
				return
			}
		}
		looked <- nil
	}()
	leave := func() {
		require.NotNil(t, place)
		place.(*listener).HandOver()
		require.NoError(t, place.Close())
	}
	for range 200 {
		next, err := f.(*fabric).Await(addr, rcm.ListenConfig{})
		require.NoError(t, err)
		waiting, end := context.WithCancel(t.Context())
		had := make(chan rcm.Listener)
		go func() {
			l, err := next(waiting)
			assert.NoError(t, err)
			had <- l
		}()
		leave()
		end()
		if place = <-had; place == nil {
			break
		}
	}
	stop()
	require.NoError(t, <-looked)
	leave()
	_, err := f.Resolve(cmtest.Within(t), addr)
	require.ErrorIs(t, err, rcm.ErrNoListener)
}

// Who comes to a listener that hands over is served by the next one.
func TestADialToAListenerThatHandsOverIsServedByTheNext(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	f := New(Config{})
	l := mustListen(t, f, addr, rcm.ListenConfig{})
	next := nextOf(t, f, addr, rcm.ListenConfig{})
	require.True(t, l.HandOver())
	s := speakTo(t, addr)
	s.say(requestTo(addr))
	require.NoError(t, l.Close())
	r, err := next().Accept(cmtest.Within(t))
	require.NoError(t, err)
	require.Equal(t, addr, r.LocalAddr())
	require.Equal(t, os.Getpid(), r.Peer().PID)
	require.NoError(t, r.Reject(nil))
	require.Equal(t, handshake.KindReject, s.read().Kind)
}

func TestOnlyWhoAwaitsTheSamePlaceIsHandedIt(t *testing.T) {
	port := cmtest.FreePort(t)
	all := cmtest.At("::", port)
	f := New(Config{})
	l := mustListen(t, f, all, rcm.ListenConfig{})
	gone, err := f.(*fabric).Await(all, rcm.ListenConfig{})
	require.NoError(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = gone(ended)
	require.ErrorIs(t, err, context.Canceled)
	next, err := f.(*fabric).Await(all, rcm.ListenConfig{V6Only: true})
	require.NoError(t, err)
	require.False(t, l.HandOver(), "to one that serves other addresses, or one that has gone")
	require.NoError(t, l.Close())
	other, err := next(cmtest.Within(t))
	require.NoError(t, err, "who was waiting has not got the place")
	defer other.Close()
	require.True(t, other.(*listener).v6Only)
}

// Who waits for another place, or is one too many, is hung up on, and takes no place of those
// who dial.
func TestWhoCannotBeHandedThePlaceIsNotKept(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := mustListen(t, New(Config{}), addr, rcm.ListenConfig{})
	wrong := speakTo(t, addr)
	wrong.say((&handshake.Message{Kind: handshake.KindAwait, Dst: cmtest.At("127.0.0.2", addr.Port())}).AppendTo(nil))
	wrong.awaitEnd()
	await := (&handshake.Message{Kind: handshake.KindAwait, Dst: addr}).AppendTo(nil)
	for range maxSuccessors {
		speakTo(t, addr).say(await)
	}
	hang.Eventually(t, "all to wait", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.successors) == maxSuccessors && l.asking == 0
	})
	last := speakTo(t, addr)
	last.say(await)
	last.awaitEnd()
}

// Dialers take a listening socket for that of the user who listened first.
func TestAnotherUserWhomTheListenerAdmitsIsNotHandedThePlace(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := mustListen(t, New(Config{PeerPolicy: func(rcm.Peer) bool { return true }}), addr, rcm.ListenConfig{})
	other, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(other)
	asUser(t, 1002, func() error { return unix.Connect(other, &unix.SockaddrUnix{Name: nameOf(addr)}) })
	_, err = unix.Write(other, (&handshake.Message{Kind: handshake.KindAwait, Dst: addr}).AppendTo(nil))
	require.NoError(t, err)
	n, err := unix.Read(other, make([]byte, 1024)) // ended by the listener's hang-up
	require.True(t, n <= 0, "%d bytes, %v", n, err)
	require.False(t, l.HandOver())
}

// The first who waits may have gone without a word.
func TestTheNextInLineIsHandedThePlace(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	f := New(Config{})
	l := mustListen(t, f, addr, rcm.ListenConfig{})
	var waits []*socket
	for range 3 {
		s, err := dial(l.f.listenNames(addr, false), nil)
		require.NoError(t, err)
		require.NoError(t, s.send(&handshake.Message{Kind: handshake.KindAwait, Dst: addr}))
		waits = append(waits, s)
	}
	for _, s := range waits {
		s.Close()
	}
	next := nextOf(t, f, addr, rcm.ListenConfig{})
	require.True(t, l.HandOver())
	require.NoError(t, l.Close())
	next()
}

// Nobody has accepted yet who waits: he has said what he wants all the same.
func TestWhoHasJustComeIsHandedThePlace(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	f := New(Config{})
	l := mustListen(t, f, addr, rcm.ListenConfig{})
	for _, ln := range l.lns {
		ln.Pause()
	}
	next := nextOf(t, f, addr, rcm.ListenConfig{})
	require.True(t, l.HandOver())
	require.NoError(t, l.Close())
	next()
}

// successorProcess starts a process that waits for the place of l, and stops it.
func successorProcess(t *testing.T, l *listener) (awaken func()) {
	t.Helper()
	c := cmtest.StartChild(t, 0, "await", l.addr.String())
	t.Cleanup(func() { c.Cmd.Process.Kill() })
	require.NoError(t, c.Cmd.Process.Signal(unix.SIGSTOP))
	hang.Eventually(t, "the successor", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.successors) == 1 && stopped(c.Cmd.Process.Pid)
	})
	return func() {
		require.NoError(t, c.Cmd.Process.Signal(unix.SIGCONT))
		c.Expect(t, "listens")
	}
}

// A process that is stopped would let everybody wait who dials.
func TestAProcessThatIsStoppedIsNotHandedThePlace(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	f := New(Config{})
	l := mustListen(t, f, addr, rcm.ListenConfig{})
	awaken := successorProcess(t, l)
	require.False(t, l.HandOver())
	require.NoError(t, l.Close())
	_, err := f.Resolve(t.Context(), addr)
	require.ErrorIs(t, err, rcm.ErrNoListener, "nobody serves")
	awaken() // it takes the place, which is free
	r, err := f.Resolve(t.Context(), addr)
	require.NoError(t, err)
	r.Close()
}

func TestThePlaceIsHandedToOneBehindAProcessThatIsStopped(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	f := New(Config{})
	l := mustListen(t, f, addr, rcm.ListenConfig{})
	successorProcess(t, l)
	next := nextOf(t, f, addr, rcm.ListenConfig{})
	require.True(t, l.HandOver())
	require.NoError(t, l.Close())
	s := speakTo(t, addr)
	s.say(requestTo(addr))
	r, err := next().Accept(cmtest.Within(t))
	require.NoError(t, err)
	require.NoError(t, r.Reject(nil))
}

// The one who has said that he takes the place may be gone, and the others not have answered yet.
func TestThePlaceIsHandedToOneWhoHasNotAnsweredYet(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := mustListen(t, New(Config{}), addr, rcm.ListenConfig{})
	waits := func() *socket {
		s, err := dial(l.f.listenNames(addr, false), nil)
		require.NoError(t, err)
		t.Cleanup(func() { s.Close() })
		s.TakeDescriptors()
		require.NoError(t, s.send(&handshake.Message{Kind: handshake.KindAwait, Dst: addr}))
		return s
	}
	waiting := func(n int) {
		hang.Eventually(t, "successors", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return len(l.successors) == n })
	}
	first, second := waits(), waits()
	waiting(2)
	offered := make(chan struct{})
	go func() { l.Offer(); close(offered) }()
	_, err := first.expect(handshake.KindOffer)
	require.NoError(t, err)
	require.NoError(t, first.send(&handshake.Message{Kind: handshake.KindTake}))
	<-offered
	first.Close()
	waiting(1)
	require.True(t, l.HandOver())
	require.NoError(t, l.Close())
	fds, err := second.handed(cmtest.Within(t)) // its TAKE comes too late
	require.NoError(t, err)
	require.Len(t, fds, 1)
	samehost.CloseReceived(fds...)
}

// Of two who wait one is handed the place, and closes at once. The other one was hung up on, and has yet to
// come there.
func TestThePlaceIsHandedOnToOneWhoWaitedElsewhere(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	f := New(Config{})
	l := mustListen(t, f, addr, rcm.ListenConfig{})
	first := nextOf(t, f, addr, rcm.ListenConfig{})
	require.True(t, l.HandOver())
	require.NoError(t, l.Close())
	l = first()
	l.adopted = time.Now().Add(hang.Time) // on a busy machine the other one is late
	handed := hang.Start(t, func() { assert.True(t, l.HandOver()) })
	next := nextOf(t, f, addr, rcm.ListenConfig{})
	handed()
	require.NoError(t, l.Close())
	next()
}

// Until somebody has said that he takes the place.
func TestPeersAreServedWhileThePlaceIsOffered(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := mustListen(t, New(Config{}), addr, rcm.ListenConfig{})
	successor, err := dial(l.f.listenNames(addr, false), nil)
	require.NoError(t, err)
	defer successor.Close()
	successor.TakeDescriptors()
	require.NoError(t, successor.send(&handshake.Message{Kind: handshake.KindAwait, Dst: addr}))
	hang.Eventually(t, "the successor", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return len(l.successors) == 1 })
	offered := make(chan struct{})
	go func() { l.Offer(); close(offered) }()
	_, err = successor.expect(handshake.KindOffer)
	require.NoError(t, err)
	s := speakTo(t, addr)
	s.say(requestTo(addr))
	r, err := l.Accept(cmtest.Within(t))
	require.NoError(t, err)
	require.NoError(t, r.Reject(nil))
	require.NoError(t, successor.send(&handshake.Message{Kind: handshake.KindTake}))
	<-offered
	require.True(t, l.HandOver())
}

// Who says that he takes what nobody has offered breaks the rules, and so does who says it twice.
func TestWhoTakesWhatIsNotOfferedIsHungUpOn(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := mustListen(t, New(Config{}), addr, rcm.ListenConfig{})
	take := (&handshake.Message{Kind: handshake.KindTake}).AppendTo(nil)
	s := speakTo(t, addr)
	s.say((&handshake.Message{Kind: handshake.KindAwait, Dst: addr}).AppendTo(nil))
	s.say(take)
	s.awaitEnd()
	twice := speakTo(t, addr)
	twice.say((&handshake.Message{Kind: handshake.KindAwait, Dst: addr}).AppendTo(nil))
	hang.Eventually(t, "the successor", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return len(l.successors) == 1 })
	offered := make(chan struct{})
	go func() { l.Offer(); close(offered) }()
	require.Equal(t, handshake.KindOffer, twice.read().Kind)
	twice.say(take)
	<-offered
	twice.say(take)
	twice.awaitEnd()
	require.False(t, l.HandOver())
}

func TestAPlaceInADirectoryIsHandedOver(t *testing.T) {
	l, dir := meetingAt(t)
	f := l.f
	var places []samehost.SocketID
	for range 3 {
		next := nextOf(t, f, l.addr, rcm.ListenConfig{})
		require.True(t, l.HandOver())
		c, err := dir.Dial(unix.SOCK_SEQPACKET, nil, os.Geteuid(), entriesFor(l.addr)...)
		require.NoError(t, err, "nobody has the place")
		defer c.Close()
		places = append(places, c.To())
		require.NoError(t, l.Close())
		l = next()
		// it serves: nothing begins so
		hungUp(t, l.say(t, dir, handshake.Message{Kind: handshake.KindReady}))
	}
	require.Equal(t, places[0], places[2], "it is another socket")
	require.NoError(t, l.Close())
	_, err := dir.Dial(unix.SOCK_SEQPACKET, nil, os.Geteuid(), entriesFor(l.addr)...)
	require.ErrorIs(t, err, unix.ECONNREFUSED)
	// One that has no directory takes no place there.
	l, dir = meetingAt(t)
	next := nextOf(t, New(Config{}), l.addr, rcm.ListenConfig{})
	require.True(t, l.HandOver())
	require.NoError(t, l.Close())
	next()
	// what is not wanted is closed elsewhere
	hang.Eventually(t, "the end of the socket there", func() bool {
		c, err := dir.Dial(unix.SOCK_SEQPACKET, nil, os.Geteuid(), entriesFor(l.addr)...)
		if err == nil {
			c.Close()
		}
		return errors.Is(err, unix.ECONNREFUSED)
	})
}

func TestAListenerMayHaveTheNamesOfItsAddresses(t *testing.T) {
	for at, want := range map[string]map[string]bool{
		"192.0.2.1:9000": {"192.0.2.1:9000": true, "192.0.2.1:9000+": false, "192.0.2.1:9001": false, "192.0.2.2:9000": false},
		"0.0.0.0:9000":   {"192.0.2.1:9000+": true, "192.0.2.1:9000": false, "192.0.2.1:9001+": false, "[2001:db8::1]:9000+": false, "+": false},
		"[::]:9000":      {"192.0.2.1:9000+": true, "[2001:db8::1]:9000+": true, "other": false},
	} {
		l := &listener{addr: netip.MustParseAddrPort(at)}
		for entry, may := range want {
			require.Equal(t, may, l.mayHave(entry), "%s: %s", at, entry)
		}
	}
}
