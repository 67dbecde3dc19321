package rcm_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

func TestBadParametersLeaveTheQPInReset(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		l := f.MustListen(t, addr, rcm.ListenConfig{})
		s := f.NewSide(t)
		for name, p := range map[string]rcm.ConnParam{
			"too much private data": {PrivateData: make([]byte, rcm.MaxRequestData+1)},
			"retry count":           {RetryCount: 8},
			"RNR retry":             {RNRRetry: 8},
			"RNR timer":             {MinRNRTimer: 32},
			"timeout":               {Timeout: 32},
		} {
			t.Run(name, func(t *testing.T) {
				qp := s.QP(t)
				_, err := f.MustResolve(t, addr).Connect(cmtest.Within(t), qp, p)
				require.ErrorIs(t, err, verbs.ErrInvalid)
				a, err := qp.Query()
				require.NoError(t, err)
				require.Equal(t, verbs.QPStateReset, a.State)
			})
		}
		require.Zero(t, l.Stats().Requests)
	})
}

func TestOnlyRCIsConnected(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		l := f.MustListen(t, addr, rcm.ListenConfig{})
		s := f.NewSide(t)
		connected := false
		for typ, c := range map[verbs.QPType]verbs.Cap{verbs.QPTypeUC: verbs.CapUC, verbs.QPTypeUD: verbs.CapUD} {
			if !s.Pd.Context().Attr().Caps.Has(c) {
				continue
			}
			connected = true
			qp, err := s.NewQPOf(typ)
			require.NoError(t, err)
			_, err = f.MustResolve(t, addr).Connect(cmtest.Within(t), qp, rcm.ConnParam{})
			require.ErrorIs(t, err, verbs.ErrInvalid)
			require.ErrorContains(t, err, "not RC")
			require.NoError(t, qp.Close())
		}
		require.Equal(t, !f.IWARP, connected)
		require.Zero(t, l.Stats().Requests, "the peer is not bothered with it")
	})
}

func TestARouteIsGoodForOneConnection(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		f.MustListen(t, addr, rcm.ListenConfig{})
		r := f.MustResolve(t, addr)
		require.NoError(t, r.Close())
		_, err := r.Connect(cmtest.Within(t), f.NewSide(t).QP(t), rcm.ConnParam{})
		require.ErrorIs(t, err, verbs.ErrInvalid)
	})
}

func TestRejectReachesTheDialer(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		l := f.MustListen(t, addr, rcm.ListenConfig{})
		dialed := f.DialAsync(t, cmtest.Within(t), addr, rcm.ConnParam{PrivateData: []byte("may I")})
		r, err := l.Accept(cmtest.Within(t))
		require.NoError(t, err)
		cmtest.Carried(f, t, r.PrivateData(), "may I")
		require.NoError(t, r.Reject([]byte("no")))
		err = cmtest.Await(t, dialed) // ends with the REJ
		var rejected *rcm.RejectedError
		require.ErrorAs(t, err, &rejected)
		require.Equal(t, rcm.ReasonConsumer, rejected.Reason)
		cmtest.Carried(f, t, rejected.PrivateData, "no")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.NotErrorIs(t, err, rcm.ErrNoListener)
		require.ErrorIs(t, r.Reject(nil), verbs.ErrInvalid, "a request has one answer")
	})
}

// text returns n bytes, none of which is 0.
func text(n int) string {
	return strings.Repeat("private data ", n/13+1)[:n]
}

func TestPrivateDataMayBeAsLongAsItsLimit(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		p := f.NewPair(t,
			rcm.ConnParam{PrivateData: []byte(text(rcm.MaxRequestData))}, rcm.ConnParam{PrivateData: []byte(text(rcm.MaxReplyData))})
		cmtest.Carried(f, t, p.Far.PrivateData(), text(rcm.MaxRequestData))
		cmtest.Carried(f, t, p.Near.PrivateData(), text(rcm.MaxReplyData))

		dialed := f.DialAsync(t, cmtest.Within(t), p.Addr, rcm.ConnParam{})
		r, err := p.L.Accept(cmtest.Within(t))
		require.NoError(t, err)
		require.ErrorIs(t, r.Reject(make([]byte, rcm.MaxRejectData+1)), verbs.ErrInvalid)
		require.NoError(t, r.Reject([]byte(text(rcm.MaxRejectData))), "the first try answered nothing")
		var rejected *rcm.RejectedError
		require.ErrorAs(t, cmtest.Await(t, dialed), &rejected) // ends with the REJ
		cmtest.Carried(f, t, rejected.PrivateData, text(rcm.MaxRejectData))

		dialed = f.DialAsync(t, cmtest.Within(t), p.Addr, rcm.ConnParam{})
		r, err = p.L.Accept(cmtest.Within(t))
		require.NoError(t, err)
		_, err = r.Accept(cmtest.Within(t), f.NewSide(t).QP(t), rcm.ConnParam{PrivateData: make([]byte, rcm.MaxReplyData+1)})
		require.ErrorIs(t, err, verbs.ErrInvalid)
		require.Error(t, cmtest.Await(t, dialed)) // ends because the request is gone
	})
}

func TestConnectEndsWithItsContext(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		l := f.MustListen(t, addr, rcm.ListenConfig{})
		ctx, cancel := context.WithCancel(t.Context())
		canceled := f.DialAsync(t, ctx, addr, rcm.ConnParam{})
		require.Eventually(t, func() bool { return l.Stats().Requests == 1 }, time.Minute, time.Millisecond)
		cancel()
		require.ErrorIs(t, cmtest.Await(t, canceled), context.Canceled) // ends with cancel

		ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err := <-f.DialAsync(t, ctx, addr, rcm.ConnParam{}) // ends with the deadline
		require.ErrorIs(t, err, rcm.ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		// Ends the handshakes that siw goes on with, for which QPs would wait
		// 10 s to be closed.
		require.NoError(t, l.Close())
	})
}

func TestAcceptOfARequestEndsWithItsContext(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		l := f.MustListen(t, addr, rcm.ListenConfig{})
		dialed := f.DialAsync(t, cmtest.Within(t), addr, rcm.ConnParam{})
		r, err := l.Accept(cmtest.Within(t))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = r.Accept(ctx, f.NewSide(t).QP(t), rcm.ConnParam{})
		require.ErrorIs(t, err, context.Canceled)
		require.Error(t, cmtest.Await(t, dialed)) // ends because the request is gone
	})
}

func TestAFailedPrepareEndsTheHandshake(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *cmtest.Fabric) {
		broken := errors.New("no receives")
		addr := f.Addr(t)
		l := f.MustListen(t, addr, rcm.ListenConfig{})
		fail := rcm.ConnParam{Prepare: func(*verbs.QP) error { return broken }}
		require.ErrorIs(t, <-f.DialAsync(t, cmtest.Within(t), addr, fail), broken)

		dialed := f.DialAsync(t, cmtest.Within(t), addr, rcm.ConnParam{})
		r, err := l.Accept(cmtest.Within(t))
		require.NoError(t, err)
		_, err = r.Accept(cmtest.Within(t), f.NewSide(t).QP(t), fail)
		require.ErrorIs(t, err, broken)
		err = cmtest.Await(t, dialed) // ends with the hang-up or reject
		require.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ECONNREFUSED), err)
	})
}
