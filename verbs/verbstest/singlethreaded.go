package verbstest

import (
	"errors"
	"runtime"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// testSingleThreaded keeps the promise of QPInitAttr.SingleThreaded, and does beside it what may
// be done at any time.
func testSingleThreaded(t *testing.T, s *suite) {
	single := usual
	single.single = true
	t.Run("messages go both ways", func(t *testing.T) {
		a, b := s.connected(t, single)
		const messages = 200
		for i := range uint64(messages) {
			for _, way := range [][2]*side{{a, b}, {b, a}} {
				from, to := way[0], way[1]
				to.receive(verbs.RecvWR{ID: i, SGL: []verbs.SGE{to.mr.SGE(0, 64)}})
				data := pattern(make([]byte, 16), byte(i))
				from.post(verbs.SendWR{ID: i, Opcode: verbs.OpSend, Flags: verbs.SendInline | verbs.SendSignaled, Inline: [][]byte{data}})
				to.received(i, verbs.WCSuccess)
				require.Equal(t, data, to.mr.Bytes()[:16])
				from.sent(i, verbs.WCSuccess)
			}
		}
	})
	t.Run("Query, Modify and Close come at any time", func(t *testing.T) {
		a, b := s.connected(t, single)
		polled, ended := make(chan struct{}, 1), make(chan struct{})
		wr := []verbs.SendWR{a.write(b.mr.Addr(), b.mr.RKey(), 8)}
		wr[0].Flags |= verbs.SendSignaled
		go func() {
			defer close(ended)
			wcs := make([]verbs.WC, 16)
			for {
				_, posting := a.qp.PostSend(wr)
				n, polling := a.send.Poll(wcs)
				if errors.Is(posting, verbs.ErrClosed) && errors.Is(polling, verbs.ErrClosed) {
					return
				}
				if n == 0 {
					runtime.Gosched()
					continue
				}
				select {
				case polled <- struct{}{}:
				default:
				}
			}
		}()
		<-polled
		for range 20 {
			attr, err := a.qp.Query()
			require.NoError(t, err)
			require.Equal(t, verbs.QPStateRTS, attr.State)
			<-polled
		}
		require.NoError(t, a.qp.Fail())
		<-polled // the flush goes on
		require.NoError(t, a.qp.Close())
		require.NoError(t, a.send.Close())
		<-ended // by both errors
	})
	t.Run("a QP that is not is refused on a CQ that is", func(t *testing.T) {
		a, _ := s.sides(t, single)
		attr := a.qp.Attr()
		attr.SingleThreaded = false
		_, err := a.pd.CreateQP(attr)
		require.ErrorIs(t, err, verbs.ErrInvalid)
	})
}
