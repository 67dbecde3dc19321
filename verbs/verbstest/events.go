package verbstest

import (
	"os"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// wait is one of the two ways to wait on a channel.
type wait struct {
	name string
	wait func(*verbs.CompChannel, time.Time) error
}

var waits = []wait{
	{"parked", (*verbs.CompChannel).Wait},
	{"thread", (*verbs.CompChannel).WaitThread},
}

// testEvents looks at arming and waiting.
func testEvents(t *testing.T, s *suite) {
	send := verbs.SendWR{ID: 1, Opcode: verbs.OpSend}
	solicited := verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSolicited}
	for _, w := range waits {
		run := func(name string, f func(t *testing.T, a, b *side)) {
			t.Run(name+"/"+w.name, func(t *testing.T) {
				a, b := s.connected(t, usual)
				b.receive(receives(0, 32)...)
				f(t, a, b)
			})
		}
		// comes waits for an event; waits may end early for no reason, so only
		// a completion that can be polled counts.
		comes := func(t *testing.T, b *side, cq *verbs.CQ) verbs.WC {
			t.Helper()
			deadline := time.Now().Add(patience)
			var wc [1]verbs.WC
			for {
				n, err := cq.Poll(wc[:])
				require.NoError(t, err)
				if n == 1 {
					return wc[0]
				}
				require.NoError(t, w.wait(b.ch, deadline))
			}
		}
		// arrives arms before each wait: the event that ended the last may have
		// been that of a completion which was polled before it came.
		arrives := func(t *testing.T, b *side) verbs.WC {
			t.Helper()
			deadline := time.Now().Add(patience)
			var wc [1]verbs.WC
			for {
				require.NoError(t, b.recv.Arm(false))
				n, err := b.recv.Poll(wc[:])
				require.NoError(t, err)
				if n == 1 {
					return wc[0]
				}
				require.NoError(t, w.wait(b.ch, deadline))
			}
		}
		run("an arrival after Arm ends the wait", func(t *testing.T, a, b *side) {
			require.NoError(t, b.recv.Arm(false))
			go func() {
				time.Sleep(2 * time.Millisecond)
				_, _ = a.qp.PostSend([]verbs.SendWR{send}) // the wait shows whether it worked
			}()
			require.NoError(t, w.wait(b.ch, time.Now().Add(patience)))
			b.received(0, verbs.WCSuccess)
		})
		run("an event of the past is not lost", func(t *testing.T, a, b *side) {
			require.NoError(t, b.recv.Arm(false))
			a.post(send)
			b.received(0, verbs.WCSuccess)
			require.NoError(t, w.wait(b.ch, time.Now().Add(patience)))
		})
		run("only a solicited arrival ends the wait for one", func(t *testing.T, a, b *side) {
			if b.iwarp() {
				t.Skip("siw cannot tell a solicited arrival, and wakes for each")
			}
			require.NoError(t, b.recv.Arm(true))
			a.post(send)
			b.received(0, verbs.WCSuccess)
			require.ErrorIs(t, expire(w, b.ch, 20*time.Millisecond), os.ErrDeadlineExceeded)
			a.post(solicited)
			require.NoError(t, w.wait(b.ch, time.Now().Add(patience)))
			b.received(1, verbs.WCSuccess)
		})
		run("asking for a solicited one does not weaken what is armed for any", func(t *testing.T, a, b *side) {
			require.NoError(t, b.recv.Arm(false))
			require.NoError(t, b.recv.Arm(true))
			a.post(send)
			require.NoError(t, w.wait(b.ch, time.Now().Add(patience)))
			b.received(0, verbs.WCSuccess)
			require.NoError(t, a.send.Arm(false))
			require.NoError(t, a.send.Arm(true))
			own := send
			own.Flags = verbs.SendSignaled
			a.post(own)
			require.NoError(t, w.wait(a.ch, time.Now().Add(patience)))
			a.sent(1, verbs.WCSuccess)
		})
		run("one Arm, one event", func(t *testing.T, a, b *side) {
			require.NoError(t, b.recv.Arm(false))
			for range 3 {
				a.post(send)
			}
			b.poll(b.recv, 3)
			require.NoError(t, w.wait(b.ch, time.Now().Add(patience)))
			require.ErrorIs(t, expire(w, b.ch, 20*time.Millisecond), os.ErrDeadlineExceeded)
		})
		run("a flush ends the wait even for a solicited one", func(t *testing.T, a, b *side) {
			if b.pair.Lacks&LackFlushEvent != 0 {
				t.Skip("flushed receives of this device do not count as solicited")
			}
			require.NoError(t, b.recv.Arm(true))
			go func() {
				time.Sleep(2 * time.Millisecond)
				_ = b.qp.Fail() // the wait shows whether it worked
			}()
			require.Equal(t, verbs.WCWRFlushErr, comes(t, b, b.recv).Status)
		})
		run("a completion of our own ends the wait", func(t *testing.T, a, b *side) {
			require.NoError(t, a.send.Arm(false))
			go func() {
				time.Sleep(2 * time.Millisecond)
				wr := send
				wr.Flags = verbs.SendSignaled
				_, _ = a.qp.PostSend([]verbs.SendWR{wr}) // the wait shows whether it worked
			}()
			require.Equal(t, verbs.WCSuccess, comes(t, a, a.send).Status)
		})
		run("a moderated CQ gives one event for many arrivals", func(t *testing.T, a, b *side) {
			attr := b.ctx.Attr()
			if !attr.Caps.Has(verbs.CapModerateCQ) {
				require.ErrorIs(t, b.recv.Moderate(1, time.Microsecond), verbs.ErrUnsupported)
				t.Skip("the device does not moderate")
			}
			a.post(send)
			b.received(0, verbs.WCSuccess) // the two know each other
			b.receive(verbs.RecvWR{ID: 0})
			posted := uint64(1)
			// took is how long the wait for n arrivals takes.
			took := func(n int) time.Duration {
				require.NoError(t, b.recv.Arm(false))
				start := time.Now()
				for range n {
					a.post(send)
				}
				require.NoError(t, w.wait(b.ch, start.Add(patience)))
				d := time.Since(start)
				for _, wc := range b.poll(b.recv, n) {
					require.Equal(t, posted%32, wc.ID)
					b.receive(verbs.RecvWR{ID: wc.ID})
					posted++
				}
				return d
			}
			// A wait may end early for no reason, and a process may
			// wait for its processor.
			once := func(n int, ok func(d time.Duration) bool, what string) {
				for range 100 {
					if ok(took(n)) {
						return
					}
				}
				t.Error(what)
			}
			period := min(attr.MaxModerationPeriod, 10*time.Millisecond)
			early := func(d time.Duration) bool { return d < period }
			late := func(d time.Duration) bool { return d >= period }
			require.NoError(t, b.recv.Moderate(4, period))
			once(3, late, "three arrivals never wait for the fourth")
			once(4, early, "four arrivals always wait for a fifth")
			require.NoError(t, b.recv.Moderate(0, 0))
			once(1, early, "what is not moderated always waits")

			for _, bad := range []struct {
				count  int
				period time.Duration
			}{{-1, 0}, {attr.MaxModerationCount + 1, 0}, {1, -1}, {1, time.Nanosecond}, {1, attr.MaxModerationPeriod + time.Microsecond}} {
				require.ErrorIs(t, b.recv.Moderate(bad.count, bad.period), verbs.ErrInvalid, "%+v", bad)
			}
			require.NoError(t, b.recv.Moderate(1000, attr.MaxModerationPeriod))
			b.ch.Wake()
			require.NoError(t, w.wait(b.ch, time.Now().Add(patience)))
		})
		run("the deadline ends the wait", func(t *testing.T, a, b *side) {
			require.NoError(t, b.recv.Arm(false))
			require.ErrorIs(t, expire(w, b.ch, 5*time.Millisecond), os.ErrDeadlineExceeded)
			require.ErrorIs(t, w.wait(b.ch, time.Now().Add(-time.Second)), os.ErrDeadlineExceeded)
			a.post(send)
			require.NoError(t, w.wait(b.ch, time.Now().Add(patience)), "a later wait works")
		})
		run("Wake ends the wait, also one that comes later", func(t *testing.T, a, b *side) {
			require.NoError(t, b.recv.Arm(false))
			go func() {
				time.Sleep(2 * time.Millisecond)
				b.ch.Wake()
			}()
			require.NoError(t, w.wait(b.ch, time.Now().Add(patience)))
			b.ch.Wake()
			require.NoError(t, w.wait(b.ch, time.Now().Add(patience)))
			a.post(send)
			require.NoError(t, w.wait(b.ch, time.Now().Add(patience)), "the CQ is armed still")
		})
		run("Close ends the wait", func(t *testing.T, a, b *side) {
			go func() {
				time.Sleep(2 * time.Millisecond)
				_ = b.ch.Close() // the wait shows whether it worked
			}()
			for {
				if err := w.wait(b.ch, time.Now().Add(patience)); err != nil {
					require.ErrorIs(t, err, verbs.ErrClosed)
					return
				}
			}
		})
		run("nothing is lost between arming and sleeping", func(t *testing.T, a, b *side) {
			const n = 3000
			credits := b.credits(32)
			go func() {
				for i := range uint32(n) {
					wr := verbs.SendWR{Opcode: a.sendOp(), Imm: i}
					if !credits.take() {
						return // the receiving side shows it
					}
					for {
						if k, _ := a.qp.PostSend([]verbs.SendWR{wr}); k == 1 {
							break
						}
						time.Sleep(time.Microsecond)
					}
					if i%7 == 0 {
						time.Sleep(time.Duration(i%50) * time.Microsecond)
					}
				}
			}()
			for i := range uint32(n) {
				wc := arrives(t, b)
				require.Equal(t, verbs.WCSuccess, wc.Status)
				b.requireImm(i, wc)
				b.receive(verbs.RecvWR{})
				credits.add(1)
			}
		})
	}
	t.Run("a CQ without channel cannot be armed", func(t *testing.T) {
		a, _ := s.sides(t, usual)
		cq, err := a.ctx.CreateCQ(verbs.CQAttr{CQE: 1}, nil)
		require.NoError(t, err)
		require.ErrorIs(t, cq.Arm(false), verbs.ErrInvalid)
	})
}

// expire waits for d and skips waits that end early for no reason.
func expire(w wait, ch *verbs.CompChannel, d time.Duration) error {
	deadline := time.Now().Add(d)
	for range 100 {
		if err := w.wait(ch, deadline); err != nil {
			return err
		}
		if time.Until(deadline) > d/2 {
			return nil // that was an event
		}
	}
	return nil
}
