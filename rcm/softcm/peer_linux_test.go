package softcm

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"github.com/stretchr/testify/require"
)

func nobody(rcm.Peer) bool { return false }

func TestAListenerRefusesPeersThatItsPolicyDenies(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := onSoft().MustListen(t, addr, rcm.ListenConfig{PeerPolicy: nobody})
	s := speakTo(t, addr)
	require.Equal(t, handshake.Message{Kind: handshake.KindReject, Reason: rcm.ReasonPeerDenied}, s.read())
	s.awaitEnd()
	require.Equal(t, rcm.ListenStats{Denied: 1}, l.Stats())
}

func TestThePolicyOfTheFabricHoldsForItsListeners(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l, err := New(Config{PeerPolicy: nobody}).Listen(addr, rcm.ListenConfig{})
	require.NoError(t, err)
	defer l.Close()
	require.EqualValues(t, rcm.ReasonPeerDenied, speakTo(t, addr).read().Reason)
}

func TestAListenersPolicyDoesNotLetInWhoTheFabricDoesNot(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	asked := false
	l, err := New(Config{PeerPolicy: nobody}).Listen(addr, rcm.ListenConfig{PeerPolicy: func(rcm.Peer) bool { asked = true; return true }})
	require.NoError(t, err)
	require.EqualValues(t, rcm.ReasonPeerDenied, speakTo(t, addr).read().Reason)
	require.NoError(t, l.Close())
	require.False(t, asked)
}

func TestADialerRefusesListenersThatItsPolicyDenies(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := onSoft().MustListen(t, addr, rcm.ListenConfig{})
	_, err := New(Config{PeerPolicy: nobody}).Resolve(cmtest.Within(t), addr)
	require.ErrorIs(t, err, rcm.ErrPeerDenied)
	require.NotErrorIs(t, err, rcm.ErrNoListener)
	require.Zero(t, l.Stats().Requests)
}

func TestADialerPassesOverASquatterToATrustedListener(t *testing.T) {
	port := cmtest.FreePort(t)
	squatter := onSoft().MustListen(t, cmtest.At("127.0.0.1", port), rcm.ListenConfig{})
	trusted := onSoft().MustListen(t, cmtest.At("0.0.0.0", port), rcm.ListenConfig{})
	asked := 0
	f := New(Config{PeerPolicy: func(rcm.Peer) bool { asked++; return asked > 1 }})
	r, err := f.Resolve(cmtest.Within(t), cmtest.At("127.0.0.1", port))
	require.NoError(t, err)
	defer r.Close()
	require.Eventually(t, func() bool { return handshakes(trusted) == 1 && handshakes(squatter) == 0 }, time.Minute, time.Millisecond)
}

func TestThePolicySeesWhoThePeerIs(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	c := cmtest.StartChild(t, 0, "squat", "soft0", addr.String())
	var seen rcm.Peer
	f := New(Config{PeerPolicy: func(p rcm.Peer) bool { seen = p; return true }})
	r, err := f.Resolve(cmtest.Within(t), addr)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.Equal(t, rcm.Peer{PID: c.PID(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, seen)
}

// TestAnotherUserIsDenied needs the right to start a process as another user;
// without it the policy tests above stand for it.
func TestAnotherUserIsDenied(t *testing.T) {
	if os.Geteuid() != 0 {
		return
	}
	const stranger = 65534
	t.Run("as a squatter", func(t *testing.T) {
		addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
		cmtest.StartChild(t, stranger, "squat", "soft0", addr.String())
		_, err := New(Config{}).Resolve(cmtest.Within(t), addr)
		require.ErrorIs(t, err, rcm.ErrPeerDenied)
		require.ErrorContains(t, err, "of user 65534 listens")
	})
	if _, err := samehost.Names(0); err == nil { // the kernel tells whose a socket is
		t.Run("as a squatter with a full queue", func(t *testing.T) {
			port := cmtest.FreePort(t)
			cmtest.StartChild(t, stranger, "hoard", cmtest.At("127.0.0.1", port).String())
			hang.Eventually(t, "a denial", func() bool { // the look at the sockets has its rests
				_, err := New(Config{}).Resolve(cmtest.Within(t), cmtest.At("127.0.0.1", port))
				return errors.Is(err, rcm.ErrPeerDenied)
			})
			trusted := onSoft().MustListen(t, cmtest.At("0.0.0.0", port), rcm.ListenConfig{})
			r, err := New(Config{}).Resolve(cmtest.Within(t), cmtest.At("127.0.0.1", port))
			require.NoError(t, err)
			defer r.Close()
			require.Eventually(t, func() bool { return handshakes(trusted) == 1 }, time.Minute, time.Millisecond)
		})
	}
	t.Run("as a dialer that the listener's policy would let in", func(t *testing.T) {
		addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
		l := onSoft().MustListen(t, addr, rcm.ListenConfig{PeerPolicy: func(rcm.Peer) bool { return true }})
		cmtest.StartChild(t, stranger, "knock", addr.String()).Expect(t, "rejected")
		// it is told first
		require.Eventually(t, func() bool { return l.Stats().Denied == 1 }, time.Minute, time.Millisecond)
	})
	t.Run("as a dialer", func(t *testing.T) {
		addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
		l := onSoft().MustListen(t, addr, rcm.ListenConfig{})
		cmtest.StartChild(t, stranger, "knock", addr.String()).Expect(t, "rejected")
		// it is told first
		require.Eventually(t, func() bool { return l.Stats().Denied == 1 }, time.Minute, time.Millisecond)
	})
}

// Beside whoever has a full queue the listener is found that a rule lets in, unless the queue
// is that of a listener whom a rule lets in too: to that one TCP would lead.
func TestAFullQueueOfAnotherUserIsPassedOverIfNoRuleLetsItIn(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs the rights of root")
	}
	if _, err := samehost.Names(0); err != nil {
		t.Skip("the kernel does not tell whose a socket is:", err)
	}
	target := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	cmtest.StartChild(t, stranger, "hoard", target.String())
	cmtest.StartChild(t, friend, "squat", "soft0", cmtest.At("0.0.0.0", target.Port()).String())
	ours := func(p rcm.Peer) bool { return p.UID == uint32(os.Geteuid()) }
	for _, trusted := range []func(rcm.Peer) bool{nil, ours} {
		r, err := New(Config{PeerPolicy: trusted, Allow: Rules{Users: []uint32{friend}}}).Resolve(cmtest.Within(t), target)
		require.NoError(t, err)
		require.EqualValues(t, friend, r.(*route).sock.Load().Peer().UID)
		require.NoError(t, r.Close())
		require.Eventually(t, func() bool { // the look at the sockets has its rests
			_, err := New(Config{PeerPolicy: trusted, Allow: Rules{Users: []uint32{friend, stranger}}}).Resolve(cmtest.Within(t), target)
			return errors.Is(err, rcm.ErrBusy)
		}, hang.Time, time.Millisecond)
	}
}
