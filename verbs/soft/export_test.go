//go:build linux

package soft

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
	"golang.org/x/sys/unix"
)

// PairAsStrangers makes the QPs of this process pair over sockets, as those
// of two processes do, until the end of the test.
func PairAsStrangers(t testing.TB) {
	strangers.Store(true)
	t.Cleanup(func() { strangers.Store(false) })
}

// RegionsKnown returns how many regions of its peer a QP keeps.
func RegionsKnown(v *verbs.QP) int {
	q := v.Driver().(*qp)
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	return len(q.remotes)
}

// MappingsLeft returns how many mappings could not be taken back yet.
func MappingsLeft() int { return sys.LeftMappings() }

// Scribble overwrites all that a QP can reach of its peer's regions.
func Scribble(v *verbs.QP) {
	q := v.Driver().(*qp)
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	for _, r := range q.remotes {
		clear(r.mapping)
	}
	for i := range q.out.Header.Keys {
		q.out.Header.Keys[i].Store(0)
	}
}

// MakeWritable tries to write to all that a QP has of its peer's regions, whatever
// the rights say, and returns what the kernel says to it.
func MakeWritable(v *verbs.QP) error {
	q := v.Driver().(*qp)
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	var errs []error
	for _, r := range q.remotes {
		errs = append(errs, unix.Mprotect(r.mapping, unix.PROT_READ|unix.PROT_WRITE))
	}
	return errors.Join(errs...)
}

// ModeOfRegion returns the permissions of the memory of a region of the QP's device.
func ModeOfRegion(t testing.TB, v *verbs.QP, mr *verbs.MR) uint32 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(v.Driver().(*qp).dev.region(mr.LKey()).fd, &st); err != nil {
		t.Fatal(err)
	}
	return st.Mode & 0o777
}

// RegionsGiven returns how many regions a QP remembers to have given to its
// peer of another process.
func RegionsGiven(v *verbs.QP) int {
	l := linkOf(v)
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.given)
}

// LinkRests reports whether nobody reads the link of a QP to a peer of another process.
func LinkRests(v *verbs.QP) bool {
	l := linkOf(v)
	if l == nil {
		return false
	}
	l.reader.mu.Lock()
	defer l.reader.mu.Unlock()
	return l.reader.rests
}

// ShutLink does what is done when a word to the peer does not go.
func ShutLink(v *verbs.QP) { linkOf(v).shut() }

// DieUnheard sends a SEND as a process does that is killed when it has taken the peer's event, and before it
// gives it.
func DieUnheard(v *verbs.QP) {
	q := v.Driver().(*qp)
	q.sendMu.Lock()
	q.out.Header.Arm.Store(0)
	d := q.out.next()
	d.Kind, d.Flags, d.Length, d.Total = protocol.KindSend, protocol.FlagInDescriptor, 0, 0
	q.out.push(d, 0, false)
	q.out.publish()
	q.sendMu.Unlock()
	linkOf(v).shut()
}

// linkOf is nil if there is none yet.
func linkOf(v *verbs.QP) *socketLink {
	q := v.Driver().(*qp)
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	l, _ := q.link.(*socketLink)
	return l
}

// PagesOf has the provider believe in pages of size bytes, which are no
// smaller than real ones, until the end of the test.
func PagesOf(t testing.TB, size int) {
	before := protocol.PageSize
	if size < before {
		t.Skip("the machine's pages are larger")
	}
	protocol.PageSize = size
	t.Cleanup(func() { protocol.PageSize = before })
	for _, g := range []protocol.Geometry{protocol.GeometryFor(1), protocol.GeometryFor(300), protocol.GeometryFor(protocol.MaxReceives)} {
		for _, room := range g.Rooms() {
			if room[0]%size != 0 || room[1]%size != 0 || room[1] > g.Size() {
				t.Errorf("pages of %d: a part of the segment from %d to %d", size, room[0], room[1])
			}
		}
		if g.SendAt()%size != 0 {
			t.Errorf("pages of %d: SEND buffer at %d", size, g.SendAt())
		}
	}
}

// refuseIf has f asked before each system call, until the test ends.
func refuseIf(t testing.TB, f func(call string) error) {
	sys.Refuse.Store(&f)
	t.Cleanup(func() { sys.Refuse.Store(nil) })
}

// RefuseCall makes the n-th system call from now on fail with err, and returns
// what tells how many there were and which one failed. 0: none.
func RefuseCall(t testing.TB, n int64, err error) (asked func() (calls int64, failed string)) {
	var count atomic.Int64
	var which atomic.Pointer[string]
	refuseIf(t, func(call string) error {
		if count.Add(1) != n {
			return nil
		}
		which.Store(&call)
		return err
	})
	return func() (int64, string) {
		if failed := which.Load(); failed != nil {
			return count.Load(), *failed
		}
		return count.Load(), ""
	}
}

// GiveUpSoon makes QPs give up a peer that does not answer after the shortest time. No QP may
// be there yet.
func GiveUpSoon(t testing.TB) {
	usual := maxRetryBudget
	maxRetryBudget = minRetryBudget
	t.Cleanup(func() { maxRetryBudget = usual })
}

// LockedAtUnmap counts how often a mapping is taken back by somebody who has the
// send lock of a QP.
func LockedAtUnmap(t testing.TB, v *verbs.QP) (count func() int64) {
	var locked atomic.Int64
	q := v.Driver().(*qp)
	refuseIf(t, func(call string) error {
		if call == "munmap" {
			got := make(chan struct{})
			go func() {
				q.sendMu.Lock() // ends when the caller has unmapped, at the latest
				//lint:ignore SA2001 waiting for the holder is the purpose
				q.sendMu.Unlock()
				close(got)
			}()
			select {
			case <-got:
			case <-time.After(5 * time.Second):
				locked.Add(1)
			}
		}
		return nil
	})
	return locked.Load
}

// RingBytes returns how much memory the descriptors have that the peer of a QP
// writes.
func RingBytes(t testing.TB, v *verbs.QP) (bytes int) {
	t.Helper()
	q := v.Driver().(*qp)
	ring := q.in.seg.Ring
	pages, err := PagesOfMapping(protocol.PagesWithin(ring, 0, uint32(len(ring))))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		bytes += int(p&1) * protocol.PageSize
	}
	return bytes
}

// PagesOfMapping tells of each page of a mapping, in the lowest bit, whether it is
// resident. The error is ENOMEM if some of it is not mapped.
func PagesOfMapping(mem []byte) ([]byte, error) {
	size := os.Getpagesize()
	pages := make([]byte, (len(mem)+size-1)/size)
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(len(mem)), uintptr(unsafe.Pointer(&pages[0])))
	if errno != 0 {
		return nil, os.NewSyscallError("mincore", errno)
	}
	return pages, nil
}

// Queued returns how many requests wait in the send queue of a QP.
func Queued(v *verbs.QP) int {
	q := v.Driver().(*qp)
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	return q.sq.n
}

// MemoryOf is how many bytes the file behind a region of the QP's device has.
func MemoryOf(t testing.TB, v *verbs.QP, mr *verbs.MR) int {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(v.Driver().(*qp).dev.region(mr.LKey()).fd, &st); err != nil {
		t.Fatal(err)
	}
	return int(st.Blocks) * 512
}

// Drain takes what has arrived at a QP, as at its peer's request.
func Drain(v *verbs.QP) { v.Driver().(*qp).drain() }
