//go:build linux

package soft

import (
	"crypto/rand"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// stranger is a peer of which the test plays every part: it has a GID of its
// own that is less than any other, so that it is the one who dials.
type stranger struct {
	t  testing.TB
	v  *victim
	at protocol.Endpoint // of the stranger
	ln *net.UnixListener
}

// newStranger makes a victim whose QP is in RTR and waits for the stranger.
func newStranger(t testing.TB) *stranger {
	t.Helper()
	d, err := openDevice(DeviceName)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	s := &stranger{t: t, v: &victim{d: d}, at: protocol.Endpoint{QPN: 5}}
	_, err = rand.Read(s.at.GID[8:]) // less than the victim's, so it is the stranger who dials
	require.NoError(t, err)
	// Without a socket of the stranger's the victim takes it for dead if it does not
	// dial at once.
	ln, err := net.ListenUnix("unixpacket", unixName(s.at.GID))
	require.NoError(t, err)
	s.ln = ln
	t.Cleanup(func() { ln.Close() })
	p, err := d.AllocPD()
	require.NoError(t, err)
	s.v.pd = p.(*pd)
	ch, err := d.CreateCompChannel()
	require.NoError(t, err)
	c, err := d.CreateCQ(&verbs.CQAttr{CQE: 16}, ch)
	require.NoError(t, err)
	q, err := s.v.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.QPTypeRC, Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8}}, c, c, nil)
	require.NoError(t, err)
	s.v.q, s.v.recv, s.v.send = q.(*qp), c.(*cq), c.(*cq)
	mr, err := s.v.pd.AllocMR(8192, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, verbs.MROptions{})
	require.NoError(t, err)
	s.v.mr = mr.(*registration).region
	s.reachRTR()
	return s
}

func (s *stranger) reachRTR() {
	s.t.Helper()
	for _, step := range []struct {
		attr verbs.QPAttr
		mask verbs.QPAttrMask
	}{
		{verbs.QPAttr{State: verbs.QPStateInit, Port: 1, Access: protocol.RemoteRights}, verbs.QPAttrState | verbs.QPAttrPort | verbs.QPAttrAccess},
		{verbs.QPAttr{State: verbs.QPStateRTR, AV: verbs.AddressVector{DGID: s.at.GID}, DestQPN: s.at.QPN}, verbs.QPAttrState | verbs.QPAttrAV | verbs.QPAttrDestQPN},
	} {
		require.NoError(s.t, s.v.q.Modify(&step.attr, step.mask))
	}
}

func unixName(gid verbs.GID) *net.UnixAddr {
	return &net.UnixAddr{Net: "unixpacket", Name: socketName(gid)}
}

func (s *stranger) dial() *net.UnixConn {
	s.t.Helper()
	conn, err := net.DialUnix("unixpacket", nil, unixName(s.v.d.gid))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { conn.Close() })
	require.NoError(s.t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	return conn
}

func (s *stranger) hello() protocol.Hello {
	return protocol.Hello{From: s.at, To: protocol.Endpoint{GID: s.v.d.gid, QPN: s.v.q.num}, Geometry: protocol.GeometryFor(32)}
}

// say sends a packet.
func (s *stranger) say(conn *net.UnixConn, b []byte, fds ...int) {
	s.t.Helper()
	raw, err := conn.SyscallConn()
	require.NoError(s.t, err)
	err = sendPacket(raw, b, fds...)
	if errors.Is(err, unix.EPERM) { // not admitted yet
		m, _, err := readPacket(conn)
		require.NoError(s.t, err)
		require.Equal(s.t, protocol.KindWelcome, m.Kind)
		require.NoError(s.t, sendPacket(raw, b, fds...))
		return
	}
	require.NoError(s.t, err)
}

// nextPacket returns the next packet that is no welcome.
func (s *stranger) nextPacket(conn *net.UnixConn) (protocol.Message, []int, error) {
	m, fds, err := readPacket(conn)
	if err == nil && m.Kind == protocol.KindWelcome {
		return readPacket(conn)
	}
	return m, fds, err
}

// hungUp waits for the victim to hang up.
func (s *stranger) hungUp(conn *net.UnixConn) {
	s.t.Helper()
	for {
		if _, fds, err := readPacket(conn); err != nil {
			require.NotErrorIs(s.t, err, os.ErrDeadlineExceeded)
			return
		} else {
			sys.CloseFDs(fds...)
		}
	}
}

func (s *stranger) paired() bool {
	s.v.q.sendMu.Lock()
	defer s.v.q.sendMu.Unlock()
	return s.v.q.link != nil
}

// pair does it right.
func (s *stranger) pair() *net.UnixConn {
	s.t.Helper()
	return s.pairAs(s.hello())
}

func (s *stranger) pairAs(h protocol.Hello) *net.UnixConn {
	s.t.Helper()
	conn, fds := s.pairWith(h)
	sys.CloseFDs(fds...)
	return conn
}

// pairWith also returns what the victim gives: its segment, and the socket that wakes it. They
// are the caller's.
func (s *stranger) pairWith(h protocol.Hello) (conn *net.UnixConn, fds []int) {
	s.t.Helper()
	conn = s.dial()
	s.say(conn, protocol.EncodeHello(h), s.memfd(protocol.GeometryFor(32).Size(), segmentSeals))
	m, fds, err := s.nextPacket(conn)
	require.NoError(s.t, err)
	require.Equal(s.t, protocol.KindHello, m.Kind)
	require.Len(s.t, fds, 2)
	require.Eventually(s.t, s.paired, 10*time.Second, time.Millisecond)
	return conn, fds
}

// memfd makes one, closed when the test ends.
func (s *stranger) memfd(size, seals int) int {
	s.t.Helper()
	fd, err := sys.NewMemfd("stranger", size)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { sys.CloseFDs(fd) })
	if seals != 0 {
		require.NoError(s.t, sys.Seal(fd, seals))
	}
	return fd
}

func (s *stranger) file(size int64) int {
	s.t.Helper()
	f, err := os.CreateTemp(s.t.TempDir(), "")
	require.NoError(s.t, err)
	s.t.Cleanup(func() { f.Close() })
	require.NoError(s.t, f.Truncate(size))
	return int(f.Fd())
}

func TestAStrangerWhoMisbehavesIsHungUpOn(t *testing.T) {
	size := protocol.GeometryFor(32).Size()
	cases := map[string]func(s *stranger) ([]byte, []int){
		"garbage":              func(s *stranger) ([]byte, []int) { return []byte("GET / HTTP/1.1\r\n\r\n"), nil },
		"garbage with a memfd": func(s *stranger) ([]byte, []int) { return []byte{1}, []int{s.memfd(size, segmentSeals)} },
		"longer than a message": func(s *stranger) ([]byte, []int) {
			return append(protocol.EncodeHello(s.hello()), make([]byte, 500)...), nil
		},
		"version 1": func(s *stranger) ([]byte, []int) {
			b := protocol.EncodeHello(s.hello())
			b[3] = 1
			return b, []int{s.memfd(size, segmentSeals)}
		},
		"no hello":                func(s *stranger) ([]byte, []int) { return protocol.EncodeKey(protocol.KindKeyRequest, 1), nil },
		"no segment":              func(s *stranger) ([]byte, []int) { return protocol.EncodeHello(s.hello()), nil },
		"a segment without seals": func(s *stranger) ([]byte, []int) { return protocol.EncodeHello(s.hello()), []int{s.memfd(size, 0)} },
		"a segment that can shrink": func(s *stranger) ([]byte, []int) {
			return protocol.EncodeHello(s.hello()), []int{s.memfd(size, unix.F_SEAL_GROW)}
		},
		"a segment too small": func(s *stranger) ([]byte, []int) {
			return protocol.EncodeHello(s.hello()), []int{s.memfd(size-1, segmentSeals)}
		},
		"a file on disk": func(s *stranger) ([]byte, []int) { return protocol.EncodeHello(s.hello()), []int{s.file(int64(size))} },
		"a wake-up socket too many": func(s *stranger) ([]byte, []int) {
			return protocol.EncodeHello(s.hello()), []int{s.memfd(size, segmentSeals), s.file(1)}
		},
		"a wake-up socket too few": func(s *stranger) ([]byte, []int) {
			h := s.hello()
			h.Flags = protocol.HelloWakeSocket
			return protocol.EncodeHello(h), []int{s.memfd(size, segmentSeals)}
		},
		"a wake-up socket that is no socket": func(s *stranger) ([]byte, []int) {
			h := s.hello()
			h.Flags = protocol.HelloWakeSocket
			return protocol.EncodeHello(h), []int{s.memfd(size, segmentSeals), s.file(1)}
		},
		"a wake-up socket that is a socket of TCP": func(s *stranger) ([]byte, []int) {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			require.NoError(s.t, err)
			s.t.Cleanup(func() { sys.CloseFDs(fd) })
			h := s.hello()
			h.Flags = protocol.HelloWakeSocket
			return protocol.EncodeHello(h), []int{s.memfd(size, segmentSeals), fd}
		},
		"five descriptors": func(s *stranger) ([]byte, []int) {
			fd := s.memfd(size, segmentSeals)
			return protocol.EncodeHello(s.hello()), []int{fd, fd, fd, fd, fd}
		},
	}
	for name, packet := range cases {
		t.Run(name, func(t *testing.T) {
			CheckLeaks(t)
			s := newStranger(t)
			b, fds := packet(s)
			conn := s.dial()
			s.say(conn, b, fds...)
			s.hungUp(conn)
			require.False(t, s.paired())
			s.pair() // who does it right is let in
		})
	}
}

func TestAStrangerWhoMisbehavesOncePairedFailsItsQP(t *testing.T) {
	size := 8192
	answer := protocol.KeyAnswer{Key: 9, Good: true, Access: verbs.AccessRemoteWrite, Addr: 4096, Length: 8192}
	cases := map[string]func(s *stranger) ([]byte, []int){
		"garbage":                       func(s *stranger) ([]byte, []int) { return []byte{0}, nil },
		"a second hello":                func(s *stranger) ([]byte, []int) { return protocol.EncodeHello(s.hello()), nil },
		"descriptors that nobody wants": func(s *stranger) ([]byte, []int) { return protocol.EncodeBare(protocol.KindNotify), []int{s.file(1)} },
		"an answer without region":      func(s *stranger) ([]byte, []int) { return protocol.EncodeKeyAnswer(answer), nil },
		"an answer with two": func(s *stranger) ([]byte, []int) {
			return protocol.EncodeKeyAnswer(answer), []int{s.file(1), s.file(1)}
		},
		"an answer to no request": func(s *stranger) ([]byte, []int) {
			return protocol.EncodeKeyAnswer(answer), []int{s.memfd(size, segmentSeals)}
		},
		"a refusal to no request": func(s *stranger) ([]byte, []int) { return protocol.EncodeKeyAnswer(protocol.KeyAnswer{Key: 9}), nil },
		"hang-up":                 nil,
	}
	for name, packet := range cases {
		t.Run(name, func(t *testing.T) {
			CheckLeaks(t)
			s := newStranger(t)
			conn := s.pair()
			if packet == nil {
				conn.Close()
			} else {
				b, fds := packet(s)
				s.say(conn, b, fds...)
			}
			require.Eventually(t, func() bool { return s.v.q.state.Load() == stateErr }, 10*time.Second, time.Millisecond)
		})
	}
	for name, fd := range map[string]func(s *stranger) int{
		"a region without seals": func(s *stranger) int { return s.memfd(size, 0) },
		"a region too small":     func(s *stranger) int { return s.memfd(size-1, segmentSeals) },
		"a region on disk":       func(s *stranger) int { return s.file(int64(size)) },
		"a region only to read": func(s *stranger) int {
			return s.memfd(size, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
		},
	} {
		t.Run(name, func(t *testing.T) {
			CheckLeaks(t)
			s := newStranger(t)
			conn := s.pair()
			require.NoError(t, s.v.q.Modify(&verbs.QPAttr{State: verbs.QPStateRTS, Timeout: 14, RetryCount: 7}, verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCount))
			s.v.q.sendMu.Lock()
			s.v.q.out.Header.Gate.Store(protocol.GateOpen | protocol.GateWrite)
			s.v.q.sendMu.Unlock()
			_, err := s.v.q.PostSend([]verbs.SendWR{{ID: 4, Opcode: verbs.OpWrite, Flags: verbs.SendInline, Inline: [][]byte{{1}}, RemoteAddr: 4096, RKey: 9}})
			require.NoError(t, err)
			m, _, err := readPacket(conn)
			require.NoError(t, err)
			require.Equal(t, protocol.Message{Kind: protocol.KindKeyRequest, Key: 9}, m)
			s.say(conn, protocol.EncodeKeyAnswer(answer), fd(s))
			var wcs [1]verbs.WC
			require.Eventually(t, func() bool {
				n, err := s.v.send.Poll(wcs[:])
				return err == nil && n == 1
			}, 10*time.Second, time.Millisecond)
			require.Equal(t, verbs.WCLocQPOpErr, wcs[0].Status)
			require.Equal(t, stateErr, s.v.q.state.Load())
		})
	}
}

// A peer that does not run for a while does not read what it is told, over and over: to look at its ring,
// and that there is room in ours. It has its time all the same, and is told what matters.
func TestAPeerThatDoesNotReadIsNotGivenUp(t *testing.T) {
	s := newStranger(t)
	conn := s.sendToSRQ(7)
	for range 10_000 {
		s.v.q.onTimer()    // the peer is to take what is in its ring
		s.v.q.notifyPeer() // it waits for room, as far as we know
	}
	s.v.q.sendMu.Lock()
	s.v.q.link.ask(9)
	s.v.q.sendMu.Unlock()
	for m := (protocol.Message{}); m.Kind != protocol.KindKeyRequest; {
		var err error
		m, _, err = readPacket(conn)
		require.NoError(t, err)
	}
	require.Equal(t, stateRTS, s.v.q.state.Load())
	s.v.q.sendMu.Lock()
	s.v.q.out.Header.Consumed.Store(1)
	s.v.q.sendMu.Unlock()
	s.say(conn, protocol.EncodeBare(protocol.KindNotify))
	require.Equal(t, verbs.WCSuccess, s.sent().Status)
}

// What a peer says of its SRQ, and that it has taken something, may come at any time, and the packet that tells of
// it may be left out.
func TestASendIsLookedAtAgainWhileTheSRQIsEmpty(t *testing.T) {
	for name, want := range map[string]verbs.WCStatus{"it is taken": verbs.WCSuccess, "the retries end": verbs.WCRNRRetryExcErr} {
		t.Run(name, func(t *testing.T) {
			s := newStranger(t)
			retries := uint8(2)
			if want == verbs.WCSuccess {
				retries = 7 // without end: it may be taken late
			}
			s.sendToSRQ(retries)
			s.v.q.sendMu.Lock()
			s.v.q.out.Header.Starved.Store(1)
			s.v.q.sendMu.Unlock()
			s.v.q.onProgress()         // before the timer that the post has set
			time.Sleep(3 * drainDelay) // which is over then; the RNR timer is longer
			if want == verbs.WCSuccess {
				s.v.q.sendMu.Lock()
				s.v.q.out.Header.Consumed.Store(1)
				s.v.q.sendMu.Unlock()
			}
			require.Equal(t, want, s.sent().Status)
		})
	}
}

// sendToSRQ pairs with a stranger that has an SRQ, and has the victim send something.
func (s *stranger) sendToSRQ(rnrRetry uint8) *net.UnixConn {
	s.t.Helper()
	h := s.hello()
	h.Flags = protocol.HelloSRQ
	conn := s.pairAs(h)
	require.NoError(s.t, s.v.q.Modify(&verbs.QPAttr{State: verbs.QPStateRTS, Timeout: 14, RetryCount: 7, RNRRetry: rnrRetry},
		verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCount|verbs.QPAttrRNRRetry))
	s.v.q.sendMu.Lock()
	s.v.q.out.Header.Gate.Store(protocol.GateOpen | 20<<protocol.GateRNR) // 10 ms
	s.v.q.sendMu.Unlock()
	_, err := s.v.q.PostSend([]verbs.SendWR{{ID: 4, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}})
	require.NoError(s.t, err)
	return conn
}

// sent waits for the completion of what the victim has sent.
func (s *stranger) sent() verbs.WC {
	s.t.Helper()
	var wcs [1]verbs.WC
	require.Eventually(s.t, func() bool {
		n, err := s.v.send.Poll(wcs[:])
		return err == nil && n == 1
	}, 10*time.Second, time.Millisecond)
	return wcs[0]
}

func TestAKeyIsGivenOnlyToQPsOfItsPD(t *testing.T) {
	s := newStranger(t)
	other, err := s.v.d.AllocPD()
	require.NoError(t, err)
	foreign, err := other.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, verbs.MROptions{})
	require.NoError(t, err)
	private, err := s.v.pd.AllocMR(4096, verbs.AccessLocalWrite, verbs.MROptions{})
	require.NoError(t, err)
	slice, err := s.v.pd.RegisterMR(make([]byte, 4096), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	require.NoError(t, err)
	conn := s.pair()
	ask := func(key uint32) (protocol.KeyAnswer, int) {
		s.say(conn, protocol.EncodeKey(protocol.KindKeyRequest, key))
		m, fds, err := readPacket(conn)
		require.NoError(t, err)
		require.Equal(t, protocol.KindKeyAnswer, m.Kind)
		sys.CloseFDs(fds...)
		return m.Answer, len(fds)
	}
	for name, key := range map[string]uint32{
		"of another PD": foreign.RKey(), "without remote rights": private.RKey(), "of a slice": slice.RKey(), "of nothing": 0,
	} {
		answer, fds := ask(key)
		require.Equal(t, protocol.KeyAnswer{Key: key}, answer, "a key %s", name)
		require.Zero(t, fds)
	}
	answer, fds := ask(s.v.mr.key)
	require.Equal(t, protocol.KeyAnswer{Key: s.v.mr.key, Good: true, Access: verbs.AccessRemoteWrite, Addr: s.v.mr.addr, Length: 8192}, answer)
	require.Equal(t, 1, fds)
	require.NoError(t, s.v.mr.Deregister())
	m, _, err := readPacket(conn)
	require.NoError(t, err)
	require.Equal(t, protocol.Message{Kind: protocol.KindKeyGone, Key: s.v.mr.key}, m, "the peer can unmap it")
}

func TestThePolicyDecidesWhoMayPair(t *testing.T) {
	t.Cleanup(func() { SetPeerPolicy(nil) })
	s := newStranger(t)
	asked := make(chan Peer, 8)
	SetPeerPolicy(func(p Peer) bool {
		asked <- p
		return false
	})
	conn := s.dial()
	// it need not even say hello
	s.hungUp(conn)
	// sent before the hang-up
	require.Equal(t, Peer{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), PID: os.Getpid()}, <-asked)
	require.False(t, s.paired())
	SetPeerPolicy(nil)
	s.pair()
	require.Equal(t, os.Getpid(), s.v.q.PeerPID())
}

// A QP that has to dial finds a listener that the policy does not admit: the
// name is taken by somebody else.
func TestASquatterIsNotTalkedTo(t *testing.T) {
	t.Cleanup(func() { SetPeerPolicy(nil) })
	s := newStranger(t)
	squatted := verbs.GID{0: 0xff, 1: 0xff, 15: 1}
	ln, err := net.ListenUnix("unixpacket", unixName(squatted))
	require.NoError(t, err)
	defer ln.Close()
	SetPeerPolicy(func(Peer) bool { return false })
	require.NoError(t, s.v.q.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.QPAttrState))
	s.at = protocol.Endpoint{GID: squatted, QPN: 9}
	s.reachRTR()
	require.Eventually(t, func() bool { return s.v.q.state.Load() == stateErr }, 10*time.Second, time.Millisecond)
	require.NoError(t, ln.SetDeadline(time.Now().Add(10*time.Second)))
	conn, err := ln.AcceptUnix()
	require.NoError(t, err)
	defer conn.Close()
	_, _, err = readPacket(conn)
	require.Error(t, err, "it learns nothing of us")
}

// Who comes before the QP is at RTR waits; so does who comes twice.
func TestAHelloThatComesEarlyIsHeld(t *testing.T) {
	s := newStranger(t)
	require.NoError(t, s.v.q.Modify(&verbs.QPAttr{State: verbs.QPStateReset}, verbs.QPAttrState))
	s.v.d.listener.begin() // as if another QP waited
	t.Cleanup(s.v.d.listener.end)
	first, second := s.dial(), s.dial()
	packet := protocol.EncodeHello(s.hello())
	s.say(first, packet, s.memfd(protocol.GeometryFor(32).Size(), segmentSeals))
	require.Eventually(t, func() bool { return s.held() == 1 }, 10*time.Second, time.Millisecond)
	s.say(second, packet, s.memfd(protocol.GeometryFor(32).Size(), segmentSeals))
	s.hungUp(first) // the newer one counts
	require.Equal(t, 1, s.held())
	s.reachRTR()
	m, fds, err := s.nextPacket(second)
	require.NoError(t, err)
	require.Equal(t, protocol.KindHello, m.Kind)
	sys.CloseFDs(fds...)
	require.Zero(t, s.held())
}

func (s *stranger) held() int {
	s.v.d.listener.mu.Lock()
	defer s.v.d.listener.mu.Unlock()
	return len(s.v.d.listener.held)
}

func TestAHelloThatIsHeldHoldsNoMoreThanItNeeds(t *testing.T) {
	s := newStranger(t)
	h := s.hello()
	h.To.QPN = (s.v.q.num + 1) & (1<<24 - 1) // nobody's
	conn := s.dial()
	many := make([]int, 200)
	for i := range many {
		many[i] = s.v.mr.fd
	}
	s.say(conn, protocol.EncodeHello(h), many...)
	s.hungUp(conn)
	require.Zero(t, s.held())
}

func TestHelloesForNobodyAreBounded(t *testing.T) {
	CheckLeaks(t)
	s := newStranger(t)
	h := s.hello()
	for i := range uint32(maxHeld + 20) {
		h.To.QPN = (s.v.q.num + 1 + i) & (1<<24 - 1)
		s.say(s.dial(), protocol.EncodeHello(h), s.memfd(protocol.GeometryFor(32).Size(), segmentSeals))
	}
	require.Eventually(t, func() bool { return s.held() == maxHeld }, 10*time.Second, time.Millisecond)
	require.NoError(t, s.v.d.Close())
}

// A peer has a copy of our far wake-up socket, and shares its flags and what
// it holds.
func TestAPeerCannotMakeUsBlockOnOurWakeSocket(t *testing.T) {
	s := newStranger(t)
	_, fds := s.pairWith(s.hello())
	defer sys.CloseFDs(fds...)
	require.NoError(t, unix.SetNonblock(fds[1], false))
	ch := s.v.recv.ch
	require.ErrorIs(t, ch.Wait(time.Now().Add(5*time.Millisecond)), os.ErrDeadlineExceeded)
	require.ErrorIs(t, ch.WaitThread(time.Now().Add(5*time.Millisecond)), os.ErrDeadlineExceeded)
	fill(t, fds[1])
	require.NoError(t, unix.Shutdown(fds[1], unix.SHUT_RDWR))
	for _, wait := range []func(time.Time) error{ch.Wait, ch.WaitThread} {
		ch.Wake()
		require.NoError(t, wait(time.Now().Add(10*time.Second)))
	}
}

// fill sends to a wake-up socket until it takes no more.
func fill(t testing.TB, fd int) {
	for {
		err := unix.Sendto(fd, make([]byte, 4096), unix.MSG_DONTWAIT, nil)
		if err == unix.EAGAIN {
			return
		}
		require.NoError(t, err)
	}
}

func TestAPeerCannotMakeUsBlockOnItsWakeSocket(t *testing.T) {
	s := newStranger(t)
	size := protocol.GeometryFor(32).Size()
	segment := s.memfd(size, segmentSeals)
	mem, err := sys.MapFD(segment, 0, size, unix.PROT_READ|unix.PROT_WRITE)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Munmap(mem) })
	near, far, err := sys.NewWakeSocket()
	require.NoError(t, err)
	defer sys.CloseFDs(near, far)
	fill(t, far)
	h := s.hello()
	h.Flags = protocol.HelloWakeSocket
	s.say(s.dial(), protocol.EncodeHello(h), segment, far)
	require.Eventually(t, s.paired, 10*time.Second, time.Millisecond)
	require.NoError(t, unix.SetNonblock(far, false)) // it is ours, too
	protocol.ViewOf(mem, protocol.GeometryFor(32)).Header.Arm.Store(protocol.ArmArmed)
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		s.v.q.sendMu.Lock()
		defer s.v.q.sendMu.Unlock()
		s.v.q.out.wake(false)
	}()
	select {
	case <-returned:
	case <-time.After(10 * time.Second):
		sys.CloseFDs(near) // lets it go
		t.Fatal("the wake-up blocks")
	}
}

// What a peer writes to the word by which we ask for events ends no wait that
// should go on, and keeps none from its end but for the peer's own messages.
func TestALyingArmWordHarmsOnlyThePeer(t *testing.T) {
	for name, waitOf := range map[string]func(*channel) func(time.Time) error{
		"goroutine": func(ch *channel) func(time.Time) error { return ch.Wait },
		"thread":    func(ch *channel) func(time.Time) error { return ch.WaitThread },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStranger(t)
			s.pair()
			ch, arm := s.v.recv.ch, &s.v.q.in.seg.Header.Arm
			wait := waitOf(ch)
			require.NoError(t, s.v.recv.Arm(false))
			arm.Store(0) // takes the bit away, and publishes nothing
			require.NoError(t, wait(time.Now().Add(10*time.Second)), "an event")
			require.ErrorIs(t, wait(time.Now().Add(5*time.Millisecond)), os.ErrDeadlineExceeded, "once")
			arm.Store(^uint32(0)) // claims what only we may say
			require.ErrorIs(t, wait(time.Now().Add(5*time.Millisecond)), os.ErrDeadlineExceeded)
			ch.Wake()
			require.NoError(t, wait(time.Now().Add(10*time.Second)))
		})
	}
}
