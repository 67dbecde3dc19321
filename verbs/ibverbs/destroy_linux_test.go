//go:build amd64 || arm64

package ibverbs

import (
	"os"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/netpoll"
)

// libc returns a function of the C library.
func libc(t *testing.T, name string) uintptr {
	t.Helper()
	f, err := purego.Dlsym(purego.RTLD_DEFAULT, name)
	require.NoError(t, err)
	return f
}

// destroyBy has a function destroy all objects.
func (d *device) destroyBy(f uintptr) {
	*d.lib = library{deregMR: f, destroyCQ: f, destroyQP: f, destroySRQ: f, destroyAH: f, deallocPD: f}
	d.extension.freeDM, d.extension.closeXRCD, d.ops[opDeallocMW] = f, f, f
}

// destroyable is an object with what a program destroys it by.
type destroyable struct {
	object
	by func() error
}

// oneOfEach lists one of each object, in an order in which they can be destroyed. The addresses are
// EACCES for a C function that takes an int.
func oneOfEach(t *testing.T, d *device) []destroyable {
	t.Helper()
	next := uintptr(unix.EACCES)
	address := func() uintptr {
		next += 1 << 32
		return next
	}
	p := &pd{dev: d, address: address()}
	m := &deviceMemory{dev: d, address: address()}
	x := &xrcDomain{dev: d, address: address()}
	room, err := newArena(0)
	require.NoError(t, err)
	c := &cq{dev: d, address: address(), qps: make(map[uint32]*qp), room: room}
	q := &qp{dev: d, pd: p, address: address(), num: 5, sendCQ: c, recvCQ: c}
	s := &srq{dev: d, pd: p, address: address()}
	shared := &srq{dev: d, pd: p, address: address(), domain: x, cq: c}
	to := &target{domain: x, address: address()}
	a := &ah{pd: p, address: address()}
	w := &window{pd: p, address: address()}
	r := &region{dev: d, pd: p, address: address(), dm: m, mem: make([]byte, 8)}
	require.NoError(t, useAll(append(q.parts(), &p.life, &p.life, &x.life, &c.life, &x.life, &p.life, &p.life, &p.life, &m.life)...))
	c.attach(q)
	for at, o := range map[uintptr]object{
		p.address: p, m.address: m, x.address: x, c.address: c, q.address: q, s.address: s,
		shared.address: shared, to.address: to, a.address: a, w.address: w, r.address: r,
	} {
		d.add(at, o)
	}
	return []destroyable{
		{w, w.Dealloc}, {q, q.Destroy}, {to, to.Destroy}, {s, s.Destroy}, {shared, shared.Destroy}, {a, a.Destroy}, {r, r.Deregister},
		{m, m.Free}, {c, c.Destroy}, {x, x.Close}, {p, p.Dealloc},
	}
}

// A process that gives commands by write(2), and has changed its user since, can destroy nothing;
// and any command may find no memory in the kernel.
func TestWhatTheLibraryHasNotDestroyedIsStillThere(t *testing.T) {
	refuses, accepts := libc(t, "abs"), libc(t, "isalpha") // 13 of 13, and 0
	d := &device{lib: new(library), objects: make(map[uintptr]object)}
	d.ops[opPollCQ] = accepts
	list := oneOfEach(t, d)
	d.destroyBy(refuses)
	for range 2 {
		for _, o := range list {
			err := o.by()
			switch o.object.(type) {
			case *pd, *cq, *xrcDomain, *deviceMemory:
				require.ErrorIs(t, err, verbs.ErrBusy, "%T, of which others are", o.object)
			default:
				require.ErrorIs(t, err, unix.EACCES, "%T", o.object)
			}
		}
		require.Len(t, d.objects, len(list), "nothing keeps the memory of a caller, or takes events")
	}
	for _, o := range list {
		d.destroyBy(refuses)
		require.ErrorIs(t, o.by(), unix.EACCES, "%T", o.object)
		if q, ok := o.object.(*qp); ok {
			require.NoError(t, q.use(func() error { return nil }))
			require.Equal(t, q, q.sendCQ.qps[q.num], "completions of the QP are no stranger's")
		}
		d.destroyBy(accepts)
		require.NoError(t, o.by(), "%T", o.object)
		require.ErrorIs(t, o.by(), verbs.ErrClosed, "%T", o.object)
	}
	require.Empty(t, d.objects)
}

// The library leaves queues mapped that it has not destroyed, and a mapping of the device keeps the kernel's
// context, with its regions, until the process ends.
func TestMemoryOfARegionThatIsNotDestroyedOutlivesTheDevice(t *testing.T) {
	refuses, accepts := libc(t, "abs"), libc(t, "isalpha")
	d := &device{lib: new(library), objects: make(map[uintptr]object), events: netpoll.NewEvents()}
	d.ops[opPollCQ] = accepts
	oneOfEach(t, d)
	d.destroyBy(refuses)
	d.lib.closeDevice = accepts
	var mem weak.Pointer[byte]
	for _, o := range d.objects {
		if r, ok := o.(*region); ok {
			r.mem = make([]byte, 1<<16)
			mem = weak.Make(&r.mem[0])
		}
	}
	file, other, err := os.Pipe()
	require.NoError(t, err)
	defer other.Close()
	d.events.Open(file, "")
	require.NoError(t, d.Close())
	d = nil
	runtime.GC()
	require.NotNil(t, mem.Value())
}

// The library locks the context when it destroys a channel, so the device must not have been closed
// meanwhile.
func TestADeviceOutlivesAChannelThatIsBeingClosed(t *testing.T) {
	d := &device{lib: &library{destroyCompChannel: libc(t, "isalpha")}, objects: make(map[uintptr]object)}
	ch := &channel{dev: d}
	d.add(ch.address, ch)
	file, other, err := os.Pipe()
	require.NoError(t, err)
	defer other.Close()
	reading, read := make(chan struct{}), make(chan struct{})
	require.NoError(t, ch.waits.Open(file, &d.gone, func(uintptr) bool {
		close(reading)
		<-read
		return true
	}))
	go ch.waits.Wait(time.Time{}) // ends with read
	<-reading
	closed := make(chan error, 1)
	go func() { closed <- ch.Close() }() // waits for who reads
	require.Eventually(t, func() bool {
		ch.mu.Lock()
		defer ch.mu.Unlock()
		return ch.closed
	}, time.Minute, time.Millisecond)
	free := d.life.TryLock()
	close(read)
	require.NoError(t, <-closed)
	require.False(t, free, "the device could be closed")
	require.Empty(t, d.objects)
}
