package uverbs_test

import (
	"errors"
	"maps"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// TestCompletionsNeverNameALaterQP makes QPs on one CQ, lets them fail with
// receives posted, and destroys them, while others poll the CQ, ask for states
// and make the next ones.
func TestCompletionsNeverNameALaterQP(t *testing.T) {
	for _, device := range []string{"rxe0", siwDevice} {
		t.Run(device, func(t *testing.T) {
			const makers, rounds = 3, 50
			ctx := open(t, device)
			pd, err := ctx.AllocPD()
			require.NoError(t, err)
			cq, err := ctx.CreateCQ(verbs.CQAttr{CQE: 64}, nil)
			require.NoError(t, err)

			var mu sync.Mutex
			made := uint64(0)                 // QPs so far
			newest := make(map[uint32]uint64) // by number of QP: which one had it last
			lifecycle := func() error {
				qp, err := pd.CreateQP(verbs.QPInitAttr{
					Type: verbs.QPTypeRC, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxRecvWR: 4, MaxRecvSGE: 1},
				})
				if err != nil {
					return err
				}
				mu.Lock()
				made++
				id := made
				newest[qp.Num()] = id
				mu.Unlock()
				if err := qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1},
					verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess); err != nil {
					return err
				}
				if _, err := qp.PostRecv([]verbs.RecvWR{{ID: id}, {ID: id}}); err != nil {
					return err
				}
				if err := qp.Modify(verbs.QPAttr{State: verbs.QPStateErr}, verbs.QPAttrState); err != nil {
					return err
				}
				asked := make(chan error, 1)
				go func() {
					_, err := qp.Query()
					asked <- err
				}()
				if err := qp.Close(); err != nil {
					return err
				}
				if err := <-asked; !errors.Is(err, verbs.ErrClosed) { // ends with the command
					return err
				}
				return nil
			}

			var running sync.WaitGroup
			failed := make(chan error, makers)
			for range makers {
				running.Go(func() {
					for range rounds {
						if err := lifecycle(); err != nil {
							failed <- err
							return
						}
					}
				})
			}
			over := make(chan struct{})
			go func() {
				running.Wait() // ends with the rounds
				close(over)
			}()
			polled := 0
			for done := false; !done; {
				select { // never waits: the poll before this one's end sees the rest
				case <-over:
					done = true
				default:
				}
				mu.Lock()
				before := maps.Clone(newest)
				mu.Unlock()
				var wcs [8]verbs.WC
				n, err := cq.Poll(wcs[:])
				require.NoError(t, err)
				polled += n
				for _, wc := range wcs[:n] {
					require.GreaterOrEqual(t, wc.ID, before[wc.QPN], "a completion of an earlier QP %d", wc.QPN)
				}
			}
			close(failed)
			require.NoError(t, <-failed)
			t.Logf("%d QPs of %d numbers, %d completions were polled", made, len(newest), polled)
		})
	}
}
