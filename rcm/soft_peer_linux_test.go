package rcm

import (
	"os"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"github.com/stretchr/testify/require"
)

func nobody(Peer) bool { return false }

func TestAListenerRefusesPeersThatItsPolicyDenies(t *testing.T) {
	addr := at("127.0.0.1", freePort(t))
	l := onSoft().listen(t, addr, ListenConfig{PeerPolicy: nobody})
	s := speakTo(t, addr)
	require.Equal(t, message{kind: kindReject, reason: ReasonPeerDenied}, s.hear())
	s.hearsTheEnd()
	require.Equal(t, ListenStats{Denied: 1}, l.Stats())
}

func TestThePolicyOfTheFabricHoldsForItsListeners(t *testing.T) {
	addr := at("127.0.0.1", freePort(t))
	l, err := SoftWith(SoftConfig{PeerPolicy: nobody}).Listen(addr, ListenConfig{})
	require.NoError(t, err)
	defer l.Close()
	require.EqualValues(t, ReasonPeerDenied, speakTo(t, addr).hear().reason)
}

func TestAListenersPolicyDoesNotLetInWhoTheFabricDoesNot(t *testing.T) {
	addr := at("127.0.0.1", freePort(t))
	asked := false
	l, err := SoftWith(SoftConfig{PeerPolicy: nobody}).Listen(addr, ListenConfig{PeerPolicy: func(Peer) bool { asked = true; return true }})
	require.NoError(t, err)
	require.EqualValues(t, ReasonPeerDenied, speakTo(t, addr).hear().reason)
	require.NoError(t, l.Close())
	require.False(t, asked)
}

func TestADialerRefusesListenersThatItsPolicyDenies(t *testing.T) {
	addr := at("127.0.0.1", freePort(t))
	l := onSoft().listen(t, addr, ListenConfig{})
	_, err := SoftWith(SoftConfig{PeerPolicy: nobody}).Resolve(within(t), addr)
	require.ErrorIs(t, err, ErrPeerDenied)
	require.NotErrorIs(t, err, ErrNoListener)
	require.Zero(t, l.Stats().Requests)
}

func TestADialerPassesOverASquatterToATrustedListener(t *testing.T) {
	port := freePort(t)
	squatter := onSoft().listen(t, at("127.0.0.1", port), ListenConfig{})
	trusted := onSoft().listen(t, at("0.0.0.0", port), ListenConfig{})
	asked := 0
	f := SoftWith(SoftConfig{PeerPolicy: func(Peer) bool { asked++; return asked > 1 }})
	r, err := f.Resolve(within(t), at("127.0.0.1", port))
	require.NoError(t, err)
	defer r.Close()
	require.Eventually(t, func() bool { return handshakes(trusted) == 1 && handshakes(squatter) == 0 }, time.Minute, time.Millisecond)
}

func TestThePolicySeesWhoThePeerIs(t *testing.T) {
	addr := at("127.0.0.1", freePort(t))
	c := startChild(t, 0, "squat", "soft0", addr.String())
	var seen Peer
	f := SoftWith(SoftConfig{PeerPolicy: func(p Peer) bool { seen = p; return true }})
	r, err := f.Resolve(within(t), addr)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.Equal(t, Peer{PID: c.cmd.Process.Pid, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, seen)
}

// TestAnotherUserIsDenied needs the right to start a process as another user;
// without it the policy tests above stand for it.
func TestAnotherUserIsDenied(t *testing.T) {
	if os.Geteuid() != 0 {
		return
	}
	const stranger = 65534
	t.Run("as a squatter", func(t *testing.T) {
		addr := at("127.0.0.1", freePort(t))
		startChild(t, stranger, "squat", "soft0", addr.String())
		_, err := Soft().Resolve(within(t), addr)
		require.ErrorIs(t, err, ErrPeerDenied)
		require.ErrorContains(t, err, "of user 65534 listens")
	})
	if _, err := samehost.Names(0); err == nil { // the kernel tells whose a socket is
		t.Run("as a squatter with a full queue", func(t *testing.T) {
			port := freePort(t)
			startChild(t, stranger, "hoard", at("127.0.0.1", port).String())
			_, err := Soft().Resolve(within(t), at("127.0.0.1", port))
			require.ErrorIs(t, err, ErrPeerDenied)
			trusted := onSoft().listen(t, at("0.0.0.0", port), ListenConfig{})
			r, err := Soft().Resolve(within(t), at("127.0.0.1", port))
			require.NoError(t, err)
			defer r.Close()
			require.Eventually(t, func() bool { return handshakes(trusted) == 1 }, time.Minute, time.Millisecond)
		})
	}
	t.Run("as a dialer that the listener's policy would let in", func(t *testing.T) {
		addr := at("127.0.0.1", freePort(t))
		l := onSoft().listen(t, addr, ListenConfig{PeerPolicy: func(Peer) bool { return true }})
		startChild(t, stranger, "knock", addr.String()).expect(t, "rejected")
		require.Eventually(t, func() bool { return l.Stats().Denied == 1 }, time.Minute, time.Millisecond) // it is told first
	})
	t.Run("as a dialer", func(t *testing.T) {
		addr := at("127.0.0.1", freePort(t))
		l := onSoft().listen(t, addr, ListenConfig{})
		startChild(t, stranger, "knock", addr.String()).expect(t, "rejected")
		require.Eventually(t, func() bool { return l.Stats().Denied == 1 }, time.Minute, time.Millisecond) // it is told first
	})
}
