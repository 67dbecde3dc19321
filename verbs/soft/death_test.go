//go:build linux

package soft_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/race"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// kills is how many peers die in TestNothingIsLeftOfKilledPeers.
const kills = 200

func TestNothingIsLeftOfKilledPeers(t *testing.T) {
	n := kills
	if testing.Short() || race.Enabled {
		n = 20
	}
	soft.CheckLeaks(t)
	for range n {
		e, err := makeEnd(usual)
		require.NoError(t, err)
		c, err := spawn("sender", e)
		require.NoError(t, err)
		_, err = e.qp.PostRecv(make([]verbs.RecvWR, 64))
		require.NoError(t, err)
		receiveUntil(t, e, time.Duration(rand.IntN(3000))*time.Microsecond)
		require.NoError(t, c.cmd.Process.Kill())
		drainUntilFlushed(t, e)
		c.kill()
		require.NoError(t, e.close())
	}
}

// receiveUntil takes messages for some time.
func receiveUntil(t *testing.T, e *end, d time.Duration) {
	wcs := make([]verbs.WC, 16)
	for deadline := time.Now().Add(d); time.Now().Before(deadline); {
		n, err := e.recv.Poll(wcs)
		require.NoError(t, err)
		for _, wc := range wcs[:n] {
			require.Equal(t, verbs.WCSuccess, wc.Status)
		}
		_, err = e.qp.PostRecv(make([]verbs.RecvWR, n))
		require.NoError(t, err)
	}
}

// drainUntilFlushed takes what had been sent and the first flushed receive,
// sleeping on the channel.
func drainUntilFlushed(t *testing.T, e *end) {
	wcs := make([]verbs.WC, 16)
	deadline := time.Now().Add(10 * time.Second)
	for {
		require.NoError(t, e.recv.Arm(false))
		n, err := e.recv.Poll(wcs)
		require.NoError(t, err)
		for _, wc := range wcs[:n] {
			if wc.Status != verbs.WCSuccess {
				require.Equal(t, verbs.WCWRFlushErr, wc.Status)
				return
			}
		}
		_, err = e.qp.PostRecv(make([]verbs.RecvWR, n)) // so that there is one to flush
		require.NoError(t, err)
		if n == 0 {
			require.NoError(t, e.ch.Wait(deadline))
		}
	}
}

func TestWhatWasSentBeforeADeathIsDelivered(t *testing.T) {
	soft.CheckLeaks(t)
	e := newEnd(t, usual)
	const posted = 40
	c := startChild(t, "burst", e)
	_, err := e.qp.PostRecv(make([]verbs.RecvWR, posted))
	require.NoError(t, err)
	var line string
	require.NoError(t, c.out.Decode(&line)) // the child has sent
	c.kill()
	require.Eventually(t, func() bool {
		a, err := e.qp.Query()
		return err == nil && a.State == verbs.QPStateErr
	}, 10*time.Second, time.Millisecond)
	wcs := poll(t, e.recv, posted)
	for i, wc := range wcs {
		if i < burst {
			require.Equal(t, verbs.WCSuccess, wc.Status)
			require.EqualValues(t, i, wc.Imm)
		} else {
			require.Equal(t, verbs.WCWRFlushErr, wc.Status)
		}
	}
}

func TestADeathFailsWhatIsPosted(t *testing.T) {
	soft.CheckLeaks(t)
	e := newEnd(t, usual)
	c := startChild(t, "idle", e)
	var line string
	require.NoError(t, c.out.Decode(&line))
	// It has 64 receives and never polls; the others wait.
	wrs := make([]verbs.SendWR, 64+3)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend}
	}
	wrs[0].Flags = verbs.SendSignaled
	_, err := e.qp.PostSend(wrs[:1])
	require.NoError(t, err)
	require.Equal(t, verbs.WCSuccess, poll(t, e.send, 1)[0].Status)
	n, err := e.qp.PostSend(wrs[1:])
	require.NoError(t, err)
	require.Equal(t, len(wrs)-1, n)
	c.kill()
	wcs := poll(t, e.send, 3)
	require.Equal(t, verbs.WCRetryExcErr, wcs[0].Status)
	require.EqualValues(t, 64, wcs[0].ID)
	require.Equal(t, verbs.WCWRFlushErr, wcs[1].Status)
	require.Equal(t, verbs.WCWRFlushErr, wcs[2].Status)
}

// A NIC answers for a process that does not run.
func TestAStoppedPeerIsNotDead(t *testing.T) {
	e := newEnd(t, usual)
	c := startChild(t, "idle", e)
	var line string
	require.NoError(t, c.out.Decode(&line))
	_, err := e.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}})
	require.NoError(t, err)
	require.Equal(t, verbs.WCSuccess, poll(t, e.send, 1)[0].Status, "they are paired")
	// 67 ms, half a second with the retries
	require.NoError(t, e.qp.Driver().Modify(&verbs.QPAttr{State: verbs.QPStateRTS, Timeout: 14}, verbs.QPAttrState|verbs.QPAttrTimeout))
	require.NoError(t, c.cmd.Process.Signal(unix.SIGSTOP))
	// all its threads have stopped
	require.NoError(t, unix.Waitid(unix.P_PID, c.cmd.Process.Pid, nil, unix.WSTOPPED, nil))
	_, err = e.qp.PostSend([]verbs.SendWR{{
		Opcode: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{e.mr.SGE(0, 8)}, RemoteAddr: e.peer.Addr, RKey: e.peer.RKey,
	}})
	require.NoError(t, err)
	time.Sleep(time.Second)
	n, err := e.send.Poll(make([]verbs.WC, 1))
	require.NoError(t, err)
	require.Zero(t, n, "nobody has told the key")
	require.NoError(t, c.cmd.Process.Signal(unix.SIGCONT))
	require.Equal(t, verbs.WCSuccess, poll(t, e.send, 1)[0].Status)
}

func TestADeathEndsBothKindsOfWait(t *testing.T) {
	for name, wait := range map[string]func(*verbs.CompChannel, time.Time) error{
		"parked": (*verbs.CompChannel).Wait, "thread": (*verbs.CompChannel).WaitThread,
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnd(t, usual)
			c := startChild(t, "idle", e)
			_, err := e.qp.PostRecv(make([]verbs.RecvWR, 1))
			require.NoError(t, err)
			var line string
			require.NoError(t, c.out.Decode(&line))
			require.NoError(t, e.recv.Arm(true))
			go func() {
				time.Sleep(5 * time.Millisecond)
				_ = c.cmd.Process.Kill() // the wait shows whether it worked
			}()
			deadline := time.Now().Add(10 * time.Second)
			wcs := make([]verbs.WC, 1)
			for n := 0; n == 0; {
				require.NoError(t, wait(e.ch, deadline))
				n, err = e.recv.Poll(wcs)
				require.NoError(t, err)
			}
			require.Equal(t, verbs.WCWRFlushErr, wcs[0].Status)
		})
	}
}

// The receiver polls without a pause while the peer sends and goes.
func TestNothingIsLostWhenThePeerCloses(t *testing.T) {
	bothWays(t, func(t *testing.T) {
		for i := range 200 {
			a, b := newPair(t, usual)
			warm(t, a, b)
			const posted = 60
			_, err := b.qp.PostRecv(make([]verbs.RecvWR, posted))
			require.NoError(t, err)
			sent := 1 + i%50
			go func() {
				for range sent {
					// what does not go is missed below
					_, _ = a.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}})
				}
				_ = a.qp.Close()
			}()
			got, wcs := 0, make([]verbs.WC, 1)
			for n, err := spin(b.recv, wcs); wcs[0].Status == verbs.WCSuccess; n, err = spin(b.recv, wcs) {
				require.NoError(t, err)
				got += n
			}
			require.Equal(t, sent, got)
			require.NoError(t, a.close())
			require.NoError(t, b.close())
		}
	})
}
