package verbstest

import (
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// testLifetimes closes things that are in use, and things that are not.
func testLifetimes(t *testing.T, s *suite) {
	t.Run("what is in use cannot be closed", func(t *testing.T) {
		a, _ := s.connected(t, usual)
		require.ErrorIs(t, a.pd.Close(), verbs.ErrBusy)
		require.ErrorIs(t, a.send.Close(), verbs.ErrBusy)
		require.ErrorIs(t, a.recv.Close(), verbs.ErrBusy)
		require.NoError(t, a.qp.Close())
		require.ErrorIs(t, a.pd.Close(), verbs.ErrBusy, "the MR is there")
		require.NoError(t, a.mr.Close())
		require.NoError(t, a.send.Close())
		require.NoError(t, a.recv.Close())
		require.NoError(t, a.ch.Close())
		require.NoError(t, a.pd.Close())
	})
	for _, how := range []string{"alone", "with the context"} {
		t.Run("what is closed "+how+" says so", func(t *testing.T) {
			testClosed(t, s, how == "alone")
		})
	}
	t.Run("completions of a closed QP are dropped", func(t *testing.T) {
		a, b := s.connected(t, usual)
		a.post(a.write(b.mr.Addr(), b.mr.RKey(), 8))
		a.receive(receives(0, 3)...)
		require.NoError(t, a.qp.Fail())
		require.NoError(t, a.qp.Close())
		a.silent(a.send)
		a.silent(a.recv)
	})
	t.Run("memory is zero, page aligned and of the length asked for", func(t *testing.T) {
		a, _ := s.sides(t, usual)
		for _, access := range []verbs.Access{0, verbs.AccessLocalWrite, verbs.AccessRemoteRead, everyRight} {
			for _, huge := range []bool{false, true} {
				for _, n := range []int{1, 4095, 4096, 5 << 20} {
					mr, err := a.pd.AllocMR(n, access, verbs.MROptions{HugePages: huge})
					require.NoError(t, err)
					require.Len(t, mr.Bytes(), n)
					require.Zero(t, mr.Addr()%4096)
					require.Equal(t, make([]byte, n), mr.Bytes())
					pattern(mr.Bytes(), 1)
					require.NoError(t, mr.Close())
				}
			}
		}
	})
	t.Run("a slice of the caller serves for local use", func(t *testing.T) {
		a, b := s.connected(t, usual)
		mem := pattern(make([]byte, 10_000), 4)
		mr, err := a.pd.RegisterMR(mem[100:9_100], verbs.AccessLocalWrite)
		require.NoError(t, err)
		wr := a.write(b.mr.Addr(), b.mr.RKey(), 8)
		wr.SGL = []verbs.SGE{mr.SGE(0, 9000)}
		a.post(wr)
		a.sent(50, verbs.WCSuccess)
		a.placed(b)
		require.Equal(t, mem[100:9_100], b.mr.Bytes()[:9000])
		require.NoError(t, mr.Close())
	})
	t.Run("closing the context ends NextEvent", func(t *testing.T) {
		p := s.open(t)
		ended := make(chan error, 1)
		go func() {
			for {
				if _, err := p.A.NextEvent(); err != nil {
					ended <- err
					return
				}
			}
		}()
		time.Sleep(time.Millisecond)
		require.NoError(t, p.A.Close())
		require.ErrorIs(t, <-ended, verbs.ErrClosed) // ends with Close
	})
}

// testClosed uses what is closed, and closes it once more.
func testClosed(t *testing.T, s *suite, alone bool) {
	a, _ := s.connected(t, usual)
	uses := map[string]func() error{
		"PostSend": func() error {
			_, err := a.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{{1}}}})
			return err
		},
		"PostRecv": func() error { _, err := a.qp.PostRecv(receives(0, 1)); return err },
		"Modify":   func() error { return a.qp.Modify(verbs.QPAttr{State: verbs.QPStateReset}, verbs.QPAttrState) },
		"Fail":     a.qp.Fail,
		"Query":    func() error { _, err := a.qp.Query(); return err },
		"Poll":     func() error { _, err := a.recv.Poll(make([]verbs.WC, 1)); return err },
		"Arm":      func() error { return a.recv.Arm(false) },
		"Wait":     func() error { return a.ch.Wait(time.Now().Add(patience)) },
		"AllocMR":  func() error { _, err := a.pd.AllocMR(4096, verbs.AccessLocalWrite, verbs.MROptions{}); return err },
		"RegisterMR": func() error {
			_, err := a.pd.RegisterMR(make([]byte, 4096), verbs.AccessLocalWrite)
			return err
		},
		"CreateQP": func() error {
			_, err := a.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: a.send, RecvCQ: a.recv, SingleThreaded: a.conf.single, Cap: usual.cap})
			return err
		},
	}
	closes := map[string]func() error{
		"QP": a.qp.Close, "MR": a.mr.Close, "send CQ": a.send.Close, "receive CQ": a.recv.Close,
		"completion channel": a.ch.Close, "PD": a.pd.Close,
	}
	order := []string{"QP", "MR", "send CQ", "receive CQ", "completion channel", "PD"}
	if a.ctx.Attr().Caps.Has(verbs.CapResizeCQ) {
		uses["Resize"] = func() error { return a.recv.Resize(usual.cqe) }
	}
	if a.ctx.Attr().Caps.Has(verbs.CapSRQ) {
		srq, err := a.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 1})
		require.NoError(t, err)
		uses["SRQ.PostRecv"] = func() error { _, err := srq.PostRecv(receives(0, 1)); return err }
		uses["SRQ.Query"] = func() error { _, err := srq.Query(); return err }
		uses["SRQ.Modify"] = func() error { return srq.Modify(verbs.SRQAttr{Limit: 1}, verbs.SRQAttrLimit) }
		uses["CreateSRQ"] = func() error { _, err := a.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 1}); return err }
		closes["SRQ"] = srq.Close
		order = append([]string{"SRQ"}, order...)
	}
	if alone {
		for _, name := range order {
			require.NoError(t, closes[name](), name)
		}
	} else {
		require.NoError(t, a.ctx.Close())
		uses["AllocPD"] = func() error { _, err := a.ctx.AllocPD(); return err }
		uses["CreateCQ"] = func() error { _, err := a.ctx.CreateCQ(verbs.CQAttr{CQE: 16}, nil); return err }
		uses["CreateCompChannel"] = func() error { _, err := a.ctx.CreateCompChannel(); return err }
		uses["QueryPort"] = func() error { _, err := a.ctx.QueryPort(1); return err }
		uses["QueryGIDs"] = func() error { _, err := a.ctx.QueryGIDs(1); return err }
		uses["NextEvent"] = func() error { _, err := a.ctx.NextEvent(); return err }
	}
	for name, use := range uses {
		assert.ErrorIs(t, use(), verbs.ErrClosed, name)
	}
	for _, name := range order {
		assert.NoError(t, closes[name](), name)
	}
}

// testConcurrency has many goroutines post to one QP while others poll, and
// counts.
func testConcurrency(t *testing.T, s *suite) {
	conf := usual
	conf.cap.MaxSendWR, conf.cap.MaxRecvWR, conf.cqe = 256, 256, 1024
	a, b := s.connected(t, conf)
	if a.conf.single {
		t.Skip("these calls overlap")
	}
	const posters, each = 4, 2000
	const slots, slot = 128, 64
	recv := func(i uint64) verbs.RecvWR {
		return verbs.RecvWR{ID: i, SGL: []verbs.SGE{b.mr.SGE(int(i)*slot, slot)}}
	}
	for i := range uint64(slots) {
		b.receive(recv(i))
	}
	credits := b.credits(slots)
	var group sync.WaitGroup
	var mu sync.Mutex
	last := make([]uint32, posters) // guarded by mu
	seen := 0                       // guarded by mu
	deadline := time.Now().Add(patience)
	for p := range posters {
		group.Go(func() {
			for i := range uint32(each) {
				data := make([]byte, 16)
				binary.LittleEndian.PutUint32(data, uint32(p))
				binary.LittleEndian.PutUint32(data[4:], i+1)
				wr := []verbs.SendWR{{Opcode: a.sendOp(), Flags: verbs.SendInline, Inline: [][]byte{data}, Imm: uint32(p)<<24 | (i + 1)}}
				if i%64 == 0 {
					wr[0].Flags |= verbs.SendSignaled
				}
				if !credits.take() {
					return
				}
				for time.Now().Before(deadline) {
					if n, _ := a.qp.PostSend(wr); n == 1 {
						break
					}
					time.Sleep(time.Microsecond)
				}
			}
		})
	}
	group.Go(func() { // polls the sender's completions
		for got := 0; got < posters*((each+63)/64) && time.Now().Before(deadline); {
			wcs := make([]verbs.WC, 8)
			n, err := a.send.Poll(wcs)
			if err != nil {
				return
			}
			if got += n; n == 0 {
				time.Sleep(10 * time.Microsecond)
			}
		}
	})
	for range 2 {
		group.Go(func() {
			wcs := make([]verbs.WC, 16)
			for time.Now().Before(deadline) {
				mu.Lock() // order is only known among completions polled together
				n, err := b.recv.Poll(wcs)
				for _, wc := range wcs[:n] {
					data := b.mr.Bytes()[wc.ID*slot:][:8]
					p, i := binary.LittleEndian.Uint32(data), binary.LittleEndian.Uint32(data[4:])
					imm := wc.Imm == p<<24|i || wc.Flags&verbs.WCWithImm == 0
					if wc.Status == verbs.WCSuccess && p < posters && last[p]+1 == i && imm {
						last[p]++
						seen++
					}
				}
				done := seen == posters*each || err != nil
				mu.Unlock()
				if done {
					return
				}
				for _, wc := range wcs[:n] {
					// a refusal shows as a message that does not come
					_, _ = b.qp.PostRecv([]verbs.RecvWR{recv(wc.ID)})
					credits.add(1)
				}
				if n == 0 {
					time.Sleep(time.Microsecond)
				}
			}
		})
	}
	group.Wait()
	require.Equal(t, posters*each, seen, "messages in order: %v", last)
}
