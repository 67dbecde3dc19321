//go:build amd64 || arm64

package ibverbs_test

import (
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// The library frees the memory of what is closed, whoever is using it.
func TestCloseMayComeAtAnyMoment(t *testing.T) {
	device := os.Getenv("RAMJET_DEVICES")
	if device == "" {
		t.Skip("RAMJET_DEVICES names no device")
	}
	for round := range 30 {
		ctx, err := verbs.Open(device)
		require.NoError(t, err)
		ch, err := ctx.CreateCompChannel()
		require.NoError(t, err)
		l := loopOn(t, ctx, ch)
		recv := []verbs.RecvWR{{SGL: []verbs.SGE{l.mr.SGE(0, 64)}}}
		pd, attr := l.qp.PD(), l.qp.Attr()
		wrs := l.writes(3)
		uses := map[string]func() error{
			"PostSend": func() error { _, err := l.qp.PostSend(wrs); return err },
			"PostRecv": func() error { _, err := l.qp.PostRecv(recv); return err },
			"Poll":     func() error { _, err := l.cq.Poll(l.wcs[:]); return err },
			"Wait": func() error {
				if err := l.cq.Arm(false); err != nil {
					return err
				}
				return ch.Wait(time.Time{})
			},
			"Query": func() error { _, err := l.qp.Query(); return err },
			"CreateQP": func() error {
				qp, err := pd.CreateQP(attr)
				if err == nil {
					err = qp.Close()
				}
				return err
			},
			"AllocMR": func() error {
				mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite, verbs.MROptions{})
				if err == nil {
					err = mr.Close()
				}
				return err
			},
			"NextEvent": func() error { _, err := ctx.NextEvent(); return err },
		}
		var users sync.WaitGroup
		for name, use := range uses {
			users.Go(func() {
				for {
					err := use()
					switch {
					case errors.Is(err, verbs.ErrClosed):
						return
					case err != nil && !errors.Is(err, verbs.ErrQueueFull):
						t.Errorf("%s: %v", name, err)
						return
					}
				}
			})
		}
		time.Sleep(time.Duration(round*round) * 10 * time.Microsecond)
		switch round % 3 { // what is used goes first, or with the context
		case 1:
			require.NoError(t, l.qp.Close())
		case 2:
			require.NoError(t, l.qp.Close())
			for errors.Is(l.cq.Close(), verbs.ErrBusy) {
				time.Sleep(time.Microsecond) // a QP that is being made
			}
			require.NoError(t, ch.Close())
		}
		require.NoError(t, ctx.Close())
		users.Wait() // ends with Close
	}
}
