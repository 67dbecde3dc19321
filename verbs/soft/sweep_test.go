//go:build linux

package soft_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Each system call of the life of a pair fails once. What comes of it may be an
// error or a failed QP, but never a fault, a wait without end, or something
// that is left behind.
func TestEachSystemCallMayFail(t *testing.T) {
	for name, setUp := range map[string]func(testing.TB){"in one process": func(testing.TB) {}, "between strangers": soft.PairAsStrangers} {
		t.Run(name, func(t *testing.T) {
			setUp(t)
			asked := soft.RefuseCall(t, 0, nil)
			require.NoError(t, wholeLife())
			calls, _ := asked()
			require.Greater(t, calls, int64(30))
			soft.GiveUpSoon(t)
			for n := range calls {
				t.Run(fmt.Sprint("call ", n+1), func(t *testing.T) {
					soft.CheckLeaks(t)
					err := unix.ENOMEM
					if n%2 == 0 {
						err = unix.EMFILE
					}
					asked := soft.RefuseCall(t, n+1, err)
					got := wholeLife()
					require.NotErrorIs(t, got, errNothing)
					_, failed := asked()
					if got != nil {
						t.Logf("%s: %v", failed, got)
					}
				})
			}
		})
	}
}

// wholeLife makes a pair, uses it, and closes everything. It returns the first
// error.
func wholeLife() error {
	short := usual
	short.memory, short.cqe = 1<<16, 64
	short.cap = verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64}
	a, err := makeEnd(short)
	if a.ctx != nil {
		defer a.close()
	}
	if err != nil {
		return err
	}
	b, err := makeEnd(short)
	if b.ctx != nil {
		defer b.close()
	}
	if err != nil {
		return err
	}
	for range 2 { // again after RESET
		if err := useOnce(a, b); err != nil {
			return err
		}
		for _, e := range []*end{a, b} {
			if err := e.qp.Modify(verbs.QPAttr{State: verbs.QPStateReset}, verbs.QPAttrState); err != nil {
				return err
			}
		}
	}
	private, err := a.pd.AllocMR(1<<16, verbs.AccessLocalWrite, verbs.MROptions{HugePages: true})
	if err != nil {
		return err
	}
	return errors.Join(private.Close(), b.mr.Close(), a.qp.Close(), b.close(), a.close())
}

// useOnce connects the ends, and moves data of each kind.
func useOnce(a, b *end) error {
	forB, err := a.address()
	if err != nil {
		return err
	}
	forA, err := b.address()
	if err != nil {
		return err
	}
	if err := errors.Join(a.connect(forA), b.connect(forB)); err != nil {
		return err
	}
	if _, err := b.qp.PostRecv(make([]verbs.RecvWR, 2)); err != nil {
		return err
	}
	if err := b.recv.Arm(false); err != nil {
		return err
	}
	for _, wr := range []verbs.SendWR{
		{Opcode: verbs.OpWriteWithImm, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.mr.SGE(0, 4096)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()},
		{Opcode: verbs.OpRead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.mr.SGE(0, 4096)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()},
		{Opcode: verbs.OpSend, Flags: verbs.SendSignaled},
	} {
		if _, err := a.qp.PostSend([]verbs.SendWR{wr}); err != nil {
			return err
		}
		if err := completed(a.send, 1); err != nil {
			return err
		}
	}
	if err := b.ch.Wait(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	return completed(b.recv, 2)
}

var errNothing = errors.New("nothing completes, and nothing fails")

// completed waits for n completions, of which the first that failed is the
// error.
func completed(cq *verbs.CQ, n int) error {
	var wc [1]verbs.WC
	for deadline := time.Now().Add(20 * time.Second); n > 0; {
		got, err := cq.Poll(wc[:])
		if err != nil {
			return err
		}
		if got == 0 {
			if time.Now().After(deadline) {
				return errNothing
			}
			time.Sleep(10 * time.Microsecond)
			continue
		}
		if n--; wc[0].Status != verbs.WCSuccess {
			return wc[0].Err()
		}
	}
	return nil
}
