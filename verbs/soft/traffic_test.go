//go:build linux

package soft_test

import (
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/stretchr/testify/require"
)

// TestTrafficUnderFaultsIsIntact moves messages both ways at once, with late,
// batched and slow completions and a peer that has no receives at times, and
// checks order and every byte.
func TestTrafficUnderFaultsIsIntact(t *testing.T) {
	for name, f := range map[string]*soft.Faults{
		"none":          nil,
		"batches":       {CompletionBatch: 3},
		"delay":         {CompletionDelay: 200 * time.Microsecond},
		"no receives":   {RNREvery: 3},
		"slow consumer": {SlowConsumer: 10 * time.Microsecond},
		"everything":    {CompletionBatch: 5, CompletionDelay: 300 * time.Microsecond, RNREvery: 4, SlowConsumer: 5 * time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T) {
				a, b := newPair(t, usual)
				if f != nil {
					soft.InjectFaults(a.ctx, f)
					soft.InjectFaults(b.ctx, f)
				}
				var group sync.WaitGroup
				for _, e := range []*end{a, b} {
					group.Go(func() { talk(t, e, 400) })
				}
				group.Wait()
			})
		})
	}
}

// talk sends and receives n messages of random length, asleep when there is
// nothing to do.
func talk(t *testing.T, e *end, n int) {
	const slot, slots, longest = 8192, 16, 8000
	mem := e.mr.Bytes()
	receive := func(i int) {
		if _, err := e.qp.PostRecv([]verbs.RecvWR{{ID: uint64(i), SGL: []verbs.SGE{e.mr.SGE(i%slots*slot, slot)}}}); err != nil {
			t.Error(err)
		}
	}
	for i := range slots {
		receive(i)
	}
	sent, completed, received := 0, 0, 0
	wcs := make([]verbs.WC, 8)
	// act does what can be done.
	act := func() bool {
		did := false
		for sent < n && sent-completed < slots {
			data := make([]byte, 8+rand.IntN(longest))
			for i := 8; i < len(data); i += 97 {
				data[i] = byte(rand.Uint32())
			}
			binary.LittleEndian.PutUint32(data, uint32(sent))
			binary.LittleEndian.PutUint32(data[4:], crc32.ChecksumIEEE(data[8:]))
			k, err := e.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendInline | verbs.SendSignaled, Inline: [][]byte{data}}})
			if k == 0 {
				t.Error(err)
				return false
			}
			sent++
			did = true
		}
		for _, cq := range []*verbs.CQ{e.send, e.recv} {
			k, err := cq.Poll(wcs)
			if err != nil {
				t.Error(err)
			}
			for _, wc := range wcs[:k] {
				did = true
				if wc.Status != verbs.WCSuccess {
					t.Errorf("%v", wc.Err())
					return false
				}
				if wc.Opcode != verbs.WCRecv {
					completed++
					continue
				}
				data := mem[int(wc.ID)%slots*slot:][:wc.ByteLen]
				if binary.LittleEndian.Uint32(data) != uint32(received) || binary.LittleEndian.Uint32(data[4:]) != crc32.ChecksumIEEE(data[8:]) {
					t.Errorf("message %d of %d bytes is not as it was sent", received, len(data))
				}
				received++
				receive(int(wc.ID) + slots)
			}
		}
		return did
	}
	deadline := time.Now().Add(60 * time.Second)
	for (completed < n || received < n) && !t.Failed() {
		if act() {
			continue
		}
		for _, cq := range []*verbs.CQ{e.send, e.recv} {
			if err := cq.Arm(false); err != nil {
				t.Error(err)
			}
		}
		if act() {
			continue
		}
		if err := e.ch.Wait(deadline); err != nil {
			t.Errorf("%d sent, %d completed, %d received: %v", sent, completed, received, err)
		}
	}
}

// A program that is started by ours must not get what we share.
func TestDescriptorsAreClosedOnExec(t *testing.T) {
	soft.PairAsStrangers(t)
	before := map[string]bool{}
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, fd := range list {
		before[fd.Name()] = true
	}
	a, b := newPair(t, usual)
	warm(t, a, b)
	list, err = os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	checked := 0
	for _, entry := range list {
		fd, err := strconv.Atoi(entry.Name())
		require.NoError(t, err)
		flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
		if before[entry.Name()] || errno != 0 {
			continue // not ours, or the one that read the directory
		}
		require.NotZero(t, flags&syscall.FD_CLOEXEC, "descriptor %d", fd)
		checked++
	}
	require.GreaterOrEqual(t, checked, 8) // of each side: device, pair, a wake-up socket of either
}
