package rcm

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	_ "github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/stretchr/testify/require"
)

// side is a device with what one QP needs.
type side struct {
	dev *verbs.Context
	pd  *verbs.PD
	ch  *verbs.CompChannel
	cq  *verbs.CQ
	mr  *verbs.MR
}

func newSide(t testing.TB) *side {
	t.Helper()
	s, err := openSide()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.close()) })
	return s
}

func openSide() (*side, error) {
	var s side
	var err error
	if s.dev, err = verbs.Open("soft0"); err != nil {
		return nil, err
	}
	if s.pd, err = s.dev.AllocPD(); err != nil {
		return nil, err
	}
	if s.ch, err = s.dev.CreateCompChannel(); err != nil {
		return nil, err
	}
	if s.cq, err = s.dev.CreateCQ(verbs.CQAttr{CQE: 256}, s.ch); err != nil {
		return nil, err
	}
	s.mr, err = s.pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, verbs.MROptions{})
	return &s, err
}

func (s *side) close() error {
	return errors.Join(s.mr.Close(), s.cq.Close(), s.ch.Close(), s.pd.Close(), s.dev.Close())
}

func (s *side) newQP() (*verbs.QP, error) {
	return s.pd.CreateQP(verbs.QPInitAttr{
		Type: verbs.QPTypeRC, SendCQ: s.cq, RecvCQ: s.cq,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64},
	})
}

func (s *side) qp(t testing.TB) *verbs.QP {
	t.Helper()
	qp, err := s.newQP()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, qp.Close()) })
	return qp
}

// complete waits for n successful completions; the wait ends with them, an
// error or the test's deadline.
func (s *side) complete(n int) ([]verbs.WC, error) {
	var got []verbs.WC
	for len(got) < n {
		wcs := make([]verbs.WC, n-len(got))
		k, err := s.cq.Poll(wcs)
		if err != nil {
			return nil, err
		}
		for i := range wcs[:k] {
			if err := wcs[i].Err(); err != nil {
				return nil, err
			}
		}
		got = append(got, wcs[:k]...)
		if k > 0 {
			continue
		}
		if err := s.cq.Arm(false); err != nil {
			return nil, err
		}
		if k, err = s.cq.Poll(wcs[:1]); err != nil {
			return nil, err
		} else if k > 0 {
			if err := wcs[0].Err(); err != nil {
				return nil, err
			}
			got = append(got, wcs[0])
			continue
		}
		if err := s.ch.Wait(time.Time{}); err != nil {
			return nil, err
		}
	}
	return got, nil
}

// oneReceive posts a receive, as ConnParam.Prepare.
func oneReceive(qp *verbs.QP) error {
	_, err := qp.PostRecv([]verbs.RecvWR{{ID: 1}})
	return err
}

// tell sends the peer an immediate.
func tell(qp *verbs.QP, imm uint32) error {
	_, err := qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSendWithImm, Flags: verbs.SendInline, Imm: imm}})
	return err
}

// pair is a connection of this process with itself.
type pair struct {
	addr             netip.AddrPort
	l                Listener
	dialer, acceptor *side
	dialed, accepted *verbs.QP
	near, far        Conn // of the dialer, of the acceptor
}

func newPair(t testing.TB, dial, accept ConnParam) *pair {
	t.Helper()
	p := &pair{addr: at("127.0.0.1", freePort(t)), dialer: newSide(t), acceptor: newSide(t)}
	p.l = listen(t, p.addr, ListenConfig{})
	p.dialed, p.accepted = p.dialer.qp(t), p.acceptor.qp(t)
	accepted := make(chan error, 1)
	go func() {
		r, err := p.l.Accept(t.Context())
		if err == nil {
			p.far, err = r.Accept(t.Context(), p.accepted, accept)
		}
		accepted <- err
	}()
	r, err := Soft().Resolve(t.Context(), p.addr)
	require.NoError(t, err)
	p.near, err = r.Connect(t.Context(), p.dialed, dial)
	require.NoError(t, err)
	require.NoError(t, <-accepted) // ends with the handshake
	t.Cleanup(func() {
		require.NoError(t, p.near.Disconnect())
		require.NoError(t, p.far.Disconnect())
	})
	return p
}

func TestConnectedQPsCarryData(t *testing.T) {
	p := newPair(t,
		ConnParam{PrivateData: []byte("hello"), Prepare: oneReceive},
		ConnParam{PrivateData: []byte("welcome"), Prepare: oneReceive})

	require.Equal(t, []byte("welcome"), p.near.PrivateData())
	require.Equal(t, []byte("hello"), p.far.PrivateData())
	require.Equal(t, p.addr, p.near.RemoteAddr())
	require.Equal(t, p.addr, p.far.LocalAddr())
	require.Equal(t, p.near.LocalAddr(), p.far.RemoteAddr())
	require.True(t, p.near.LocalAddr().IsValid())
	require.Equal(t, p.near.Peer(), p.far.Peer(), "both ends are this process")
	require.NoError(t, p.near.Err())
	require.NoError(t, p.far.Err())

	for _, c := range []struct {
		from *verbs.QP
		to   *side
		qp   *verbs.QP
	}{{p.dialed, p.acceptor, p.accepted}, {p.accepted, p.dialer, p.dialed}} {
		a, err := c.from.Query()
		require.NoError(t, err)
		require.Equal(t, verbs.QPStateRTS, a.State)
		require.NoError(t, tell(c.from, 77))
		wcs, err := c.to.complete(1)
		require.NoError(t, err)
		require.EqualValues(t, 77, wcs[0].Imm)
		require.Equal(t, c.qp.Num(), wcs[0].QPN)
	}
}

func TestAWildcardListenerLearnsWhatWasDialed(t *testing.T) {
	port := freePort(t)
	l := listen(t, at("::", port), ListenConfig{})
	for _, host := range []string{"127.0.0.1", "127.0.0.9", "::1"} {
		dialed := dialAsync(t, t.Context(), at(host, port), ConnParam{})
		r, err := l.Accept(t.Context())
		require.NoError(t, err)
		require.Equal(t, at(host, port), r.LocalAddr())
		require.True(t, r.RemoteAddr().Addr().IsLoopback())
		c, err := r.Accept(t.Context(), newSide(t).qp(t), ConnParam{})
		require.NoError(t, err)
		require.NoError(t, <-dialed) // ends with the handshake
		require.NoError(t, c.Disconnect())
	}
}

func TestConnectionsHaveDifferentSourceAddresses(t *testing.T) {
	seen := make(map[netip.AddrPort]bool)
	for range 1000 {
		a := netip.AddrPortFrom(netip.IPv6Loopback(), sourcePort())
		require.False(t, seen[a], a)
		require.True(t, a.Port() >= 32768 && a.Port() <= 60999, a)
		seen[a] = true
	}
}

func TestParametersReachTheQP(t *testing.T) {
	t.Run("defaults", func(t *testing.T) {
		p := newPair(t, ConnParam{}, ConnParam{})
		for _, qp := range []*verbs.QP{p.dialed, p.accepted} {
			a, err := qp.Query()
			require.NoError(t, err)
			require.EqualValues(t, 7, a.RetryCount)
			require.EqualValues(t, 7, a.RNRRetry)
			require.EqualValues(t, 6, a.MinRNRTimer)
			require.EqualValues(t, 14, a.Timeout)
			require.Zero(t, a.MaxRdAtomic)
			require.Zero(t, a.MaxDestRdAtomic)
			require.Equal(t, verbs.AccessRemoteWrite, a.Access)
		}
	})
	t.Run("given", func(t *testing.T) {
		p := newPair(t,
			ConnParam{RetryCount: 1, RNRRetry: 2, MinRNRTimer: 3, Timeout: 4, InitiatorDepth: 5, ResponderResources: 6},
			ConnParam{Access: verbs.AccessRemoteRead, InitiatorDepth: 7, ResponderResources: 3})
		a, err := p.dialed.Query()
		require.NoError(t, err)
		require.EqualValues(t, []uint8{1, 2, 3, 4}, []uint8{a.RetryCount, a.RNRRetry, a.MinRNRTimer, a.Timeout})
		require.EqualValues(t, 3, a.MaxRdAtomic, "the acceptor's resources")
		require.EqualValues(t, 6, a.MaxDestRdAtomic, "its own resources, less than the acceptor's depth")
		require.Equal(t, verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic, a.Access)
		b, err := p.accepted.Query()
		require.NoError(t, err)
		require.EqualValues(t, 6, b.MaxRdAtomic)
		require.EqualValues(t, 3, b.MaxDestRdAtomic)
		require.Equal(t, verbs.AccessRemoteRead, b.Access)
	})
}

func TestDisconnectIsToldToThePeer(t *testing.T) {
	p := newPair(t, ConnParam{}, ConnParam{})
	require.NoError(t, p.near.Disconnect())
	require.ErrorIs(t, p.near.Err(), net.ErrClosed)
	a, err := p.dialed.Query()
	require.NoError(t, err)
	require.Equal(t, verbs.QPStateErr, a.State)
	<-p.far.Disconnected() // ends with the DREQ
	require.ErrorIs(t, p.far.Err(), ErrDisconnected)
	require.NoError(t, p.near.Disconnect())
	require.NoError(t, p.far.Disconnect(), "it only frees what is left")
	require.ErrorIs(t, p.far.Err(), ErrDisconnected, "the first cause stays")
}

func TestBothSidesMayDisconnectAtOnce(t *testing.T) {
	p := newPair(t, ConnParam{}, ConnParam{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { p.near.Disconnect() })
		wg.Go(func() { p.far.Disconnect() })
	}
	wg.Wait()
	require.Error(t, p.near.Err())
	require.Error(t, p.far.Err())
}

func TestGarbageOnAConnectionEndsIt(t *testing.T) {
	p := newPair(t, ConnParam{}, ConnParam{})
	_, err := p.near.(*softConn).sock.file.Write([]byte("garbage"))
	require.NoError(t, err)
	<-p.far.Disconnected() // ends with the garbage
	require.ErrorIs(t, p.far.Err(), ErrMalformed)
	require.ErrorIs(t, p.far.Err(), syscall.ECONNRESET)
	<-p.near.Disconnected() // ends with the hang-up that follows
	require.ErrorIs(t, p.near.Err(), syscall.ECONNRESET)
}

func TestConnectionsOutliveTheirListener(t *testing.T) {
	p := newPair(t, ConnParam{}, ConnParam{Prepare: oneReceive})
	require.NoError(t, p.l.Close())
	require.NoError(t, tell(p.dialed, 5))
	_, err := p.acceptor.complete(1)
	require.NoError(t, err)
	require.NoError(t, p.near.Err())
}
