package rcm

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

func TestBadParametersLeaveTheQPInReset(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		l := f.listen(t, addr, ListenConfig{})
		s := f.newSide(t)
		for name, p := range map[string]ConnParam{
			"too much private data": {PrivateData: make([]byte, MaxRequestData+1)},
			"retry count":           {RetryCount: 8},
			"RNR retry":             {RNRRetry: 8},
			"RNR timer":             {MinRNRTimer: 32},
			"timeout":               {Timeout: 32},
		} {
			t.Run(name, func(t *testing.T) {
				qp := s.qp(t)
				_, err := f.resolve(t, addr).Connect(within(t), qp, p)
				require.ErrorIs(t, err, verbs.ErrInvalid)
				a, err := qp.Query()
				require.NoError(t, err)
				require.Equal(t, verbs.QPStateReset, a.State)
			})
		}
		require.Zero(t, l.Stats().Requests)
	})
}

func TestARouteIsGoodForOneConnection(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		f.listen(t, addr, ListenConfig{})
		r := f.resolve(t, addr)
		require.NoError(t, r.Close())
		_, err := r.Connect(within(t), f.newSide(t).qp(t), ConnParam{})
		require.ErrorIs(t, err, verbs.ErrInvalid)
	})
}

func TestRejectReachesTheDialer(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		l := f.listen(t, addr, ListenConfig{})
		dialed := f.dialAsync(t, within(t), addr, ConnParam{PrivateData: []byte("may I")})
		r, err := l.Accept(within(t))
		require.NoError(t, err)
		f.carried(t, r.PrivateData(), "may I")
		require.NoError(t, r.Reject([]byte("no")))
		err = await(t, dialed) // ends with the REJ
		var rejected *RejectedError
		require.ErrorAs(t, err, &rejected)
		require.Equal(t, ReasonConsumer, rejected.Reason)
		f.carried(t, rejected.PrivateData, "no")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.NotErrorIs(t, err, ErrNoListener)
		require.ErrorIs(t, r.Reject(nil), verbs.ErrInvalid, "a request has one answer")
	})
}

// text returns n bytes, none of which is 0.
func text(n int) string {
	return strings.Repeat("private data ", n/13+1)[:n]
}

func TestPrivateDataMayBeAsLongAsItsLimit(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		p := f.newPair(t,
			ConnParam{PrivateData: []byte(text(MaxRequestData))}, ConnParam{PrivateData: []byte(text(MaxReplyData))})
		f.carried(t, p.far.PrivateData(), text(MaxRequestData))
		f.carried(t, p.near.PrivateData(), text(MaxReplyData))

		dialed := f.dialAsync(t, within(t), p.addr, ConnParam{})
		r, err := p.l.Accept(within(t))
		require.NoError(t, err)
		require.ErrorIs(t, r.Reject(make([]byte, MaxRejectData+1)), verbs.ErrInvalid)
		require.NoError(t, r.Reject([]byte(text(MaxRejectData))), "the first try answered nothing")
		var rejected *RejectedError
		require.ErrorAs(t, await(t, dialed), &rejected) // ends with the REJ
		f.carried(t, rejected.PrivateData, text(MaxRejectData))

		dialed = f.dialAsync(t, within(t), p.addr, ConnParam{})
		r, err = p.l.Accept(within(t))
		require.NoError(t, err)
		_, err = r.Accept(within(t), f.newSide(t).qp(t), ConnParam{PrivateData: make([]byte, MaxReplyData+1)})
		require.ErrorIs(t, err, verbs.ErrInvalid)
		require.Error(t, await(t, dialed)) // ends because the request is gone
	})
}

func TestAListenerThatClosesRefusesWhoWaits(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		l := f.listen(t, addr, ListenConfig{})
		dialed := f.dialAsync(t, within(t), addr, ConnParam{})
		require.Eventually(t, func() bool { return l.Stats().Requests == 1 }, time.Minute, time.Millisecond)
		require.NoError(t, l.Close())
		require.ErrorIs(t, await(t, dialed), ErrNoListener) // ends with the REJ
	})
}

func TestConnectEndsWithItsContext(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		l := f.listen(t, addr, ListenConfig{})
		ctx, cancel := context.WithCancel(t.Context())
		canceled := f.dialAsync(t, ctx, addr, ConnParam{})
		require.Eventually(t, func() bool { return l.Stats().Requests == 1 }, time.Minute, time.Millisecond)
		cancel()
		require.ErrorIs(t, await(t, canceled), context.Canceled) // ends with cancel

		ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err := <-f.dialAsync(t, ctx, addr, ConnParam{}) // ends with the deadline
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		// Ends the handshakes that siw goes on with, for which QPs would wait
		// 10 s to be closed.
		require.NoError(t, l.Close())
	})
}

func TestAcceptOfARequestEndsWithItsContext(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		addr := f.addr(t)
		l := f.listen(t, addr, ListenConfig{})
		dialed := f.dialAsync(t, within(t), addr, ConnParam{})
		r, err := l.Accept(within(t))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = r.Accept(ctx, f.newSide(t).qp(t), ConnParam{})
		require.ErrorIs(t, err, context.Canceled)
		require.Error(t, await(t, dialed)) // ends because the request is gone
	})
}

func TestAFailedPrepareEndsTheHandshake(t *testing.T) {
	overFabrics(t, func(t *testing.T, f *testFabric) {
		broken := errors.New("no receives")
		addr := f.addr(t)
		l := f.listen(t, addr, ListenConfig{})
		fail := ConnParam{Prepare: func(*verbs.QP) error { return broken }}
		require.ErrorIs(t, <-f.dialAsync(t, within(t), addr, fail), broken)

		dialed := f.dialAsync(t, within(t), addr, ConnParam{})
		r, err := l.Accept(within(t))
		require.NoError(t, err)
		_, err = r.Accept(within(t), f.newSide(t).qp(t), fail)
		require.ErrorIs(t, err, broken)
		err = await(t, dialed) // ends with the hang-up or reject
		require.True(t, errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ECONNREFUSED), err)
	})
}
