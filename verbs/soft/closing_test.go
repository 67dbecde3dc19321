//go:build linux

package soft_test

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// What goes wrong in these tests is a fault on memory that is gone, which ends
// the process: each runs in one of its own.

func TestQPAndMemoryAreClosedBesideAPost(t *testing.T) { runAlone(t, "close-beside-post") }
func TestAQPIsMadeBesideTheDevicesClose(t *testing.T)  { runAlone(t, "create-beside-close") }
func TestAQPIsMadeBesideTheCQsClose(t *testing.T)      { runAlone(t, "close-cq-beside-create") }

// joined is two connected ends of this process.
func joined(s shape) (a, b *end, err error) {
	if a, err = makeEnd(s); err != nil {
		return a, nil, err
	}
	if b, err = makeEnd(s); err != nil {
		return a, b, err
	}
	forB, err := a.address()
	if err != nil {
		return a, b, err
	}
	forA, err := b.address()
	if err != nil {
		return a, b, err
	}
	return a, b, errors.Join(a.connect(forA), b.connect(forB))
}

// closeBesidePost closes the QP, and then the memory, while a request copies.
func closeBesidePost() error {
	const size = 64 << 20
	long := usual
	long.memory = size
	for i := range 10 {
		long.single = i%2 == 1
		a, b, err := joined(long)
		if err != nil {
			return err
		}
		source, err := a.pd.AllocMR(size, verbs.AccessLocalWrite, verbs.MROptions{})
		if err != nil {
			return err
		}
		write := []verbs.SendWR{{
			Opcode: verbs.OpWrite, SGL: []verbs.SGE{source.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
		}}
		if _, err := a.qp.PostSend(write); err != nil { // resolves the key
			return err
		}
		write[0].SGL[0] = source.SGE(0, size)
		var group sync.WaitGroup
		group.Go(func() { _, _ = a.qp.PostSend(write) })
		time.Sleep(time.Millisecond) // it copies
		group.Go(func() { _ = a.qp.Close() })
		time.Sleep(time.Millisecond) // it waits for the post
		if err := errors.Join(source.Close(), b.mr.Close()); err != nil {
			return err
		}
		group.Wait()
		if err := errors.Join(a.close(), b.close()); err != nil {
			return err
		}
	}
	return nil
}

// createBesideClose makes QPs on an armed CQ until the device is closed.
func createBesideClose() error {
	for range 300 {
		e, err := makeEnd(usual)
		if err != nil {
			return err
		}
		if err := e.recv.Arm(false); err != nil {
			return err
		}
		var group sync.WaitGroup
		errs := make(chan error, 2)
		for range 2 {
			group.Go(func() {
				for {
					_, err := e.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: e.send, RecvCQ: e.recv, Cap: usual.cap})
					if err != nil {
						errs <- err
						return
					}
				}
			})
		}
		runtime.Gosched()
		if err := e.close(); err != nil {
			return err
		}
		group.Wait()
		for range 2 {
			if err := <-errs; !errors.Is(err, verbs.ErrClosed) {
				return fmt.Errorf("create a QP on a closed device: %w", err)
			}
		}
	}
	return nil
}

// closeCQBesideCreate closes a CQ and a PD while QPs are made on them: either
// the QP is there, or they are closed.
func closeCQBesideCreate() error {
	e, err := makeEnd(usual)
	if err != nil {
		return err
	}
	for range 2000 {
		cq, err := e.ctx.CreateCQ(verbs.CQAttr{CQE: 16}, e.ch)
		if err != nil {
			return err
		}
		pd, err := e.ctx.AllocPD()
		if err != nil {
			return err
		}
		var group sync.WaitGroup
		var qp *verbs.QP
		var made, closedCQ, closedPD error
		group.Go(func() {
			qp, made = pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: cq, RecvCQ: cq, Cap: usual.cap})
		})
		group.Go(func() { closedCQ = cq.Close() })
		group.Go(func() { closedPD = pd.Close() })
		group.Wait()
		if made == nil && (closedCQ == nil || closedPD == nil) {
			return errors.New("a QP was made on a CQ or a PD that was closed")
		}
		if made != nil && !errors.Is(made, verbs.ErrClosed) {
			return made
		}
		if made == nil {
			if err := qp.Close(); err != nil {
				return err
			}
		}
	}
	return e.close()
}
