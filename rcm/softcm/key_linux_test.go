package softcm

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var testKey = []byte("a key that both can read")

// keyedAt listens in a new directory, and knows nobody but by the key.
func keyedAt(t testing.TB) (*listener, *samehost.Directory) {
	dir := samehost.DirectoryOfUnknown(t.TempDir())
	if err := dir.Err(); errors.Is(err, unix.ENOSYS) {
		t.Skip("needs openat2 (Linux 5.6):", err)
	}
	nobody := func(rcm.Peer) bool { return false }
	f := New(Config{Directory: dir.Path(), PeerPolicy: nobody, Allow: Rules{Key: testKey}})
	ln, err := f.Listen(netip.AddrPortFrom(networkHost, cmtest.FreePort(t)), rcm.ListenConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln.(*listener), dir
}

func dialIn(t testing.TB, dir *samehost.Directory, names ...string) *socket {
	t.Helper()
	for _, place := range dir.Places() {
		if c, err := dir.DialIn(unix.SOCK_SEQPACKET, everybody, place, names...); err == nil {
			t.Cleanup(func() { c.Close() })
			c.SetDeadline(time.Now().Add(cmtest.Timeout))
			return &socket{Conn: c, met: true}
		}
	}
	require.Fail(t, "nobody listens", names)
	return nil
}

func (l *listener) request() *handshake.Message {
	return &handshake.Message{
		Kind: handshake.KindRequest, From: dialerEnd, Src: netip.AddrPortFrom(networkHost, 1024), Dst: l.addr,
	}
}

// A peer that does not prove the key is told no more than that, whatever it sends.
func TestAListenerTakesNothingFromWhoHasNotProvenTheKey(t *testing.T) {
	l, dir := keyedAt(t)
	nonce := bytes.Repeat([]byte{1}, nonceSize)
	// Each gets what the listener has said to the nonce.
	for name, then := range map[string]func(said []byte) *handshake.Message{
		"no proof, but a request":   func([]byte) *handshake.Message { return l.request() },
		"no proof, but an RTU":      func([]byte) *handshake.Message { return &handshake.Message{Kind: handshake.KindReady} },
		"nothing":                   func([]byte) *handshake.Message { return keyMessage() },
		"zeros":                     func([]byte) *handshake.Message { return keyMessage(make([]byte, proofSize)) },
		"the listener's own proof":  func(said []byte) *handshake.Message { return keyMessage(said[nonceSize:]) },
		"all that the listener has": func(said []byte) *handshake.Message { return keyMessage(said) },
		"a proof of another key": func(said []byte) *handshake.Message {
			e := exchange{dialer: [nonceSize]byte(nonce), listener: [nonceSize]byte(said), at: l.meeting.ln.ID()}
			return keyMessage(e.proof([]byte("some other key that is as long"), dialerProves))
		},
		"a proof for another socket": func(said []byte) *handshake.Message {
			e := exchange{dialer: [nonceSize]byte(nonce), listener: [nonceSize]byte(said)}
			return keyMessage(e.proof(testKey, dialerProves))
		},
		"a proof for another nonce": func([]byte) *handshake.Message {
			e := exchange{dialer: [nonceSize]byte(nonce), at: l.meeting.ln.ID()}
			return keyMessage(e.proof(testKey, dialerProves))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, before := dialIn(t, dir, entriesFor(l.addr)...), l.Stats().Denied
			require.NoError(t, s.send(keyMessage(nonce)))
			said, err := s.expect(handshake.KindKey)
			require.NoError(t, err)
			require.NotContains(t, string(said.Private), string(testKey))
			require.NoError(t, s.send(then(said.Private)))
			s.refused(t)
			require.Equal(t, before+1, l.Stats().Denied)
		})
	}
	for name, first := range map[string]*handshake.Message{
		"a request":        l.request(),
		"no nonce":         keyMessage(),
		"a nonce, and so":  keyMessage(nonce, nonce),
		"that it is ready": {Kind: handshake.KindReady},
	} {
		t.Run(name+" at once", func(t *testing.T) {
			s, before := dialIn(t, dir, entriesFor(l.addr)...), l.Stats().Denied
			require.NoError(t, s.send(first))
			s.refused(t)
			require.Equal(t, before+1, l.Stats().Denied)
		})
	}
	t.Run("who has it is taken", func(t *testing.T) {
		s := dialIn(t, dir, entriesFor(l.addr)...)
		require.NoError(t, s.proveToListener(testKey, false))
		require.NoError(t, s.send(l.request()))
		r, err := l.Accept(t.Context())
		require.NoError(t, err)
		require.NoError(t, r.Reject(nil))
	})
}

func (s *socket) refused(t *testing.T) {
	t.Helper()
	var rejected *rcm.RejectedError
	_, err := s.expect(handshake.KindReply)
	require.ErrorAs(t, err, &rejected)
	require.Equal(t, rcm.ReasonPeerDenied, rejected.Reason)
}

// It dials again, then, and may be served by the next listener. The refusal of a stranger would be remembered.
func TestWhoHasSaidNothingYetIsHungUpOnByAListenerThatHandsOver(t *testing.T) {
	l, dir := keyedAt(t)
	s := dialIn(t, dir, entriesFor(l.addr)...)
	hang.Eventually(t, "the handshake", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.proving) == 1
	})
	l.HandOver()
	require.NoError(t, l.Close())
	hungUp(t, s)
}

// They have places of their own, of which the oldest is given to the next who comes.
func TestThoseWhoOweTheProofTakeNoPlaceOfOthers(t *testing.T) {
	l, dir := keyedAt(t)
	first := dialIn(t, dir, entriesFor(l.addr)...)
	for range maxProving {
		dialIn(t, dir, entriesFor(l.addr)...)
	}
	first.receive() // ends with the place
	s := dialIn(t, dir, entriesFor(l.addr)...)
	require.NoError(t, s.proveToListener(testKey, false))
	require.NoError(t, s.send(l.request()))
	r, err := l.Accept(t.Context())
	require.NoError(t, err)
	require.NoError(t, r.Reject(nil))
	require.Eventually(t, func() bool { // the ends of the handshakes of those who lost theirs
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.proving) == maxProving-1 && len(l.shaking) == maxProving-1
	}, cmtest.Timeout, time.Millisecond)
}

// standIn listens under a name in the directory, and has each dialer served by answer.
func standIn(t testing.TB, dir *samehost.Directory, name string, answer func(s *socket)) {
	ln, err := dir.Listen(samehost.ListenConfig{Type: unix.SOCK_SEQPACKET, Backlog: 8, Admit: everybody, Others: true})
	require.NoError(t, err)
	_, err = ln.SetNames([]string{name})
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.SetDeadline(time.Now().Add(cmtest.Timeout))
			answer(&socket{Conn: c, met: true, at: ln.ID()})
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		<-done // ends with the listener
	})
}

func TestADialerFindsTheListenerThatHasTheKeyAmongSquatters(t *testing.T) {
	l, dir := keyedAt(t)
	nonce := bytes.Repeat([]byte{1}, nonceSize)
	squatters := map[string]func(s *socket){
		"is silent": func(*socket) {},
		"hangs up":  func(s *socket) { s.Close() },
		"needs no key": func(s *socket) {
			s.receive()
			s.send(keyMessage())
		},
		"sends the nonce back": func(s *socket) {
			m, _ := s.receive()
			s.send(keyMessage(m.Private, m.Private))
		},
		"has another key": func(s *socket) {
			m, _ := s.receive()
			s.answerKey([]byte("some other key that is as long"), m)
		},
		"takes the request": func(s *socket) {
			s.receive()
			s.send(&handshake.Message{Kind: handshake.KindReply, From: acceptorEnd, Private: nonce})
		},
		"sends what is no message": func(s *socket) { s.Write(nonce) },
		"says that it is busy":     func(s *socket) { refuse(s, rcm.ReasonNoResources) },
		"asks the listener": func(s *socket) {
			m, _ := s.receive()
			for _, place := range dir.Places() {
				c, err := dir.DialIn(unix.SOCK_SEQPACKET, everybody, place, entriesFor(l.addr)...)
				if err != nil {
					continue
				}
				asked := &socket{Conn: c}
				c.SetDeadline(time.Now().Add(cmtest.Timeout))
				asked.send(&m)
				m, _ = asked.receive()
				s.send(&m)
				asked.Close()
			}
		},
	}
	var all []candidate
	for name, answer := range squatters {
		standIn(t, dir, name, answer)
		if name != "is silent" {
			alone := dialIn(t, dir, name)
			_, err := settle(t.Context(), testKey, []candidate{{sock: alone}})
			require.ErrorIs(t, err, rcm.ErrPeerDenied, name)
			require.NotErrorIs(t, err, rcm.ErrBusy, name)
			require.Equal(t, name == "hangs up", errors.Is(err, syscall.ECONNRESET), name)
			require.False(t, alone.proven, name)
		}
		all = append(all, candidate{sock: dialIn(t, dir, name)})
	}
	ctx, cancel := context.WithTimeout(t.Context(), cmtest.Timeout)
	defer cancel()
	listener := dialIn(t, dir, entriesFor(l.addr)...)
	got, err := settle(ctx, testKey, append(all, candidate{sock: listener}))
	require.NoError(t, err)
	require.Same(t, listener, got.sock)
}

// And not what a stranger beside it says.
func TestWhatAListenerSaysThatIsKnownWithoutTheKeyCounts(t *testing.T) {
	_, dir := keyedAt(t)
	standIn(t, dir, "known", func(s *socket) { refuse(s, rcm.ReasonNoResources) })
	standIn(t, dir, "stranger", func(s *socket) {
		s.receive()
		s.send(keyMessage())
	})
	_, err := settle(t.Context(), testKey, []candidate{{sock: dialIn(t, dir, "known"), known: true}, {sock: dialIn(t, dir, "stranger")}})
	require.ErrorIs(t, err, rcm.ErrBusy)
}

// Those who come in a flood lose their places before their handshakes have come to an end.
func TestAFloodOfThoseWhoOweTheProofTakesNoPlaceOfOthers(t *testing.T) {
	l, _ := keyedAt(t)
	name := "@ramjet-test/" + strconv.Itoa(os.Getpid()) + t.Name()
	flood, err := samehost.Listen(samehost.ListenConfig{Name: name, Type: unix.SOCK_SEQPACKET, Backlog: 1, Admit: everybody})
	require.NoError(t, err)
	defer flood.Close()
	peers := make([]*socket, maxHandshakes+8*maxProving)
	for i := range peers {
		c, err := samehost.Dial(unix.SOCK_SEQPACKET, everybody, name)
		require.NoError(t, err)
		far, err := flood.Accept()
		require.NoError(t, err)
		defer far.Close()
		peers[i] = &socket{Conn: c, met: true}
	}
	// A goroutine that begins runs when this one lets it.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	full := false
	for _, s := range peers {
		l.shake(s)
		l.mu.Lock()
		full = full || l.full()
		l.mu.Unlock()
	}
	require.False(t, full)
}
