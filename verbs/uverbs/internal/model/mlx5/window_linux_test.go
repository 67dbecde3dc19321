//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
)

// window makes a memory window and returns its key.
func (e *endpoint) window(pd uint32, typ byte) (handle, key uint32) {
	e.t.Helper()
	answer := e.must(allocateMW, words(pd, uint32(typ)), nil)
	return le.Uint32(answer), le.Uint32(answer[4:])
}

// umrSegments are those of a UMR that makes a key free, or leads it to the first half of
// the endpoint's page.
type umrSegments struct {
	flags, variant, access byte
	mask                   uint64
	qpn, to                uint32 // to: the other key, 0 if it is to be free
}

const (
	keyChanges  = 1<<29 | 1<<13
	ofAQP       = 1 << 14
	wholeTarget = 1<<0 | 1<<6 | 1<<18 | 1<<19 | 1<<20 | 1<<21
	inWQE       = 1<<7 | 1<<4
	ifFree      = 1 << 5
	ifOwn       = 1 << 3
	mayWrite    = 1 << 5
	mayRead     = 1 << 4
	halfPage    = pageSize / 2
)

func (e *endpoint) umr(key uint32, c umrSegments) []byte {
	b := make([]byte, 48+64)
	b[0] = c.flags
	be.PutUint64(b[8:], c.mask)
	be.PutUint32(b[48+4:], c.qpn<<8|uint32(c.variant))
	if c.to == 0 {
		b[48] = 1 << 6
	} else {
		be.PutUint16(b[4:], 4)
		b[48+2] = c.access
		be.PutUint64(b[48+16:], addressOf(e.data))
		be.PutUint64(b[48+24:], halfPage)
		b = append(b, dataSegment(addressOf(e.data), halfPage, c.to)...)
		b = append(b, make([]byte, 48)...)
	}
	wqe := e.wqe(opUMR, b)
	be.PutUint32(wqe[12:], key)
	wqe[11] |= 1 << 5 // as the WQE behind a UMR has to be
	return wqe
}

// bindTwo and bindOne are binds as libmlx5 writes them, freeTwo is LOCAL_INV.
func (e *endpoint) bindTwo(to uint32) umrSegments {
	return umrSegments{flags: inWQE | ifFree, mask: keyChanges | ofAQP | wholeTarget, variant: 7, qpn: e.qpn, access: mayWrite, to: to}
}

func (e *endpoint) bindOne(to uint32) umrSegments {
	return umrSegments{flags: inWQE, mask: keyChanges | wholeTarget, variant: 7, qpn: fabric.AnyQP, access: mayWrite, to: to}
}

func (e *endpoint) freeTwo() umrSegments {
	return umrSegments{flags: inWQE | ifOwn, mask: keyChanges | ofAQP, qpn: fabric.AnyQP}
}

// bound returns the key of a window that is bound to memory of b.
func (e *endpoint) bound(f *fabric.Fabric, typ byte, access byte) uint32 {
	e.t.Helper()
	_, key := e.window(e.domain, typ)
	c := e.bindOne(e.lkey)
	if typ == fabric.TypeTwo {
		c = e.bindTwo(e.lkey)
	}
	c.access = access
	e.post(e.umr(key, c))
	now := time.Now()
	run(f, &now, time.Millisecond)
	require.Equal(e.t, []syndrome{0}, causes(e.completions()))
	return key&^0xff | 7
}

func TestKeysThatMayNotBeChanged(t *testing.T) {
	for name, wqe := range map[string]func(f *fabric.Fabric, b *endpoint) []byte{
		"of a region":      func(_ *fabric.Fabric, b *endpoint) []byte { return b.umr(b.lkey, b.bindTwo(b.lkey)) },
		"that nothing has": func(_ *fabric.Fabric, b *endpoint) []byte { return b.umr(0xdead00, b.bindTwo(b.lkey)) },
		"of a window of another PD": func(_ *fabric.Fabric, b *endpoint) []byte {
			_, key := b.window(b.pd(), fabric.TypeTwo)
			return b.umr(key, b.bindTwo(b.lkey))
		},
		"of a window that was freed": func(_ *fabric.Fabric, b *endpoint) []byte {
			handle, key := b.window(b.domain, fabric.TypeTwo)
			b.must(deallocateMW, words(handle), nil)
			return b.umr(key, b.bindTwo(b.lkey))
		},
		"of a bound window of type 2": func(f *fabric.Fabric, b *endpoint) []byte {
			return b.umr(b.bound(f, fabric.TypeTwo, mayWrite), b.bindTwo(b.lkey))
		},
		"of a window of type 1 for one QP": func(_ *fabric.Fabric, b *endpoint) []byte {
			_, key := b.window(b.domain, fabric.TypeOne)
			return b.umr(key, b.bindTwo(b.lkey))
		},
		"of a window of type 2 for all QPs": func(_ *fabric.Fabric, b *endpoint) []byte {
			_, key := b.window(b.domain, fabric.TypeTwo)
			return b.umr(key, b.bindOne(b.lkey))
		},
		"for another QP": func(_ *fabric.Fabric, b *endpoint) []byte {
			_, key := b.window(b.domain, fabric.TypeTwo)
			c := b.bindTwo(b.lkey)
			c.qpn++
			return b.umr(key, c)
		},
		"by the key from before the bind": func(f *fabric.Fabric, b *endpoint) []byte {
			return b.umr(b.bound(f, fabric.TypeTwo, mayWrite)+1, b.freeTwo())
		},
		"by another QP than it was bound to": func(f *fabric.Fabric, b *endpoint) []byte {
			key := b.bound(f, fabric.TypeTwo, mayWrite)
			b.device.Windows[key>>8].QPN++
			return b.umr(key, b.freeTwo())
		},
		"to free what is free": func(_ *fabric.Fabric, b *endpoint) []byte {
			_, key := b.window(b.domain, fabric.TypeTwo)
			return b.umr(key, b.freeTwo())
		},
		"of type 1 by LOCAL_INV": func(f *fabric.Fabric, b *endpoint) []byte {
			return b.umr(b.bound(f, fabric.TypeOne, mayWrite), b.freeTwo())
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, _, b := newPair(t, fabric.AccessRemoteWrite, 0)
			b.post(wqe(f, b))
			now := time.Now()
			run(f, &now, time.Millisecond)
			cqes := b.completions()
			require.Equal(t, []syndrome{windowBind}, causes(cqes))
			require.EqualValues(t, opUMR, cqes[0][56])
			require.Empty(t, f.Violations())
		})
	}
}

func TestWhatAWindowLetsIn(t *testing.T) {
	write := func(a, b *endpoint, key uint32, at uint64) []byte {
		return a.wqe(opWrite, remoteSegment(addressOf(b.data)+at, key), dataSegment(addressOf(a.data), 8, a.lkey))
	}
	take := func(a *endpoint, key uint32) []byte {
		wqe := a.wqe(opSendInv)
		be.PutUint32(wqe[12:], key)
		return wqe
	}
	for _, test := range []struct {
		name   string
		wqe    func(f *fabric.Fabric, a, b *endpoint) []byte
		cause  syndrome
		remote []syndrome // CQEs of the responder
	}{
		{name: "a WRITE at its end", wqe: func(f *fabric.Fabric, a, b *endpoint) []byte {
			return write(a, b, b.bound(f, fabric.TypeTwo, mayWrite), halfPage-8)
		}},
		{name: "a WRITE by type 1", wqe: func(f *fabric.Fabric, a, b *endpoint) []byte {
			return write(a, b, b.bound(f, fabric.TypeOne, mayWrite), 0)
		}},
		{name: "a WRITE over its end, where the region goes on", cause: remoteAccess, remote: []syndrome{flushed}, wqe: func(f *fabric.Fabric, a, b *endpoint) []byte {
			return write(a, b, b.bound(f, fabric.TypeTwo, mayWrite), halfPage-7)
		}},
		{name: "a WRITE before it", cause: remoteAccess, remote: []syndrome{flushed}, wqe: func(f *fabric.Fabric, a, b *endpoint) []byte {
			return write(a, b, b.bound(f, fabric.TypeTwo, mayWrite), ^uint64(0))
		}},
		{name: "a WRITE to what is to be read", cause: remoteAccess, remote: []syndrome{flushed}, wqe: func(f *fabric.Fabric, a, b *endpoint) []byte {
			return write(a, b, b.bound(f, fabric.TypeTwo, mayRead), 0)
		}},
		{name: "a WRITE by the next key", cause: remoteAccess, remote: []syndrome{flushed}, wqe: func(f *fabric.Fabric, a, b *endpoint) []byte {
			return write(a, b, b.bound(f, fabric.TypeTwo, mayWrite)+1, 0)
		}},
		{name: "a WRITE before it is bound", cause: remoteAccess, remote: []syndrome{flushed}, wqe: func(_ *fabric.Fabric, a, b *endpoint) []byte {
			_, key := b.window(b.domain, fabric.TypeTwo)
			return write(a, b, key, 0)
		}},
		{name: "a WRITE to a QP that it was not bound to", cause: remoteAccess, remote: []syndrome{flushed}, wqe: func(f *fabric.Fabric, a, b *endpoint) []byte {
			key := b.bound(f, fabric.TypeTwo, mayWrite)
			b.device.Windows[key>>8].QPN++
			return write(a, b, key, 0)
		}},
		{name: "a WRITE to a region that is gone", cause: remoteAccess, remote: []syndrome{flushed}, wqe: func(f *fabric.Fabric, a, b *endpoint) []byte {
			key := b.bound(f, fabric.TypeTwo, mayWrite)
			b.must(deregister, words(b.device.Regions[b.lkey].Handle), nil)
			return write(a, b, key, 0)
		}},
		{name: "a WRITE to a region that is read only", cause: remoteAccess, remote: []syndrome{flushed}, wqe: func(f *fabric.Fabric, a, b *endpoint) []byte {
			b.lkey = b.key(b.domain, b.data, 0)
			return write(a, b, b.bound(f, fabric.TypeTwo, mayWrite), 0)
		}},
		{name: "a WRITE to a region of another PD", cause: remoteAccess, remote: []syndrome{flushed}, wqe: func(f *fabric.Fabric, a, b *endpoint) []byte {
			b.lkey = b.key(b.pd(), b.data, fabric.AccessLocalWrite)
			return write(a, b, b.bound(f, fabric.TypeTwo, mayWrite), 0)
		}},
		{name: "a WRITE to another window", cause: remoteAccess, remote: []syndrome{flushed}, wqe: func(f *fabric.Fabric, a, b *endpoint) []byte {
			b.lkey = b.bound(f, fabric.TypeOne, mayWrite)
			return write(a, b, b.bound(f, fabric.TypeTwo, mayWrite), 0)
		}},
		{name: "a SEND that takes it away", remote: []syndrome{0}, wqe: func(f *fabric.Fabric, a, b *endpoint) []byte {
			return take(a, b.bound(f, fabric.TypeTwo, mayWrite))
		}},
		{name: "a SEND that takes type 1 away", cause: remoteAccess, remote: []syndrome{localAccess}, wqe: func(f *fabric.Fabric, a, b *endpoint) []byte {
			return take(a, b.bound(f, fabric.TypeOne, mayWrite))
		}},
		{name: "a SEND that takes a region away", cause: remoteAccess, remote: []syndrome{localAccess}, wqe: func(_ *fabric.Fabric, a, b *endpoint) []byte {
			return take(a, b.lkey)
		}},
		{name: "a SEND that takes away what is free", cause: remoteAccess, remote: []syndrome{localAccess}, wqe: func(_ *fabric.Fabric, a, b *endpoint) []byte {
			_, key := b.window(b.domain, fabric.TypeTwo)
			return take(a, key)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, a, b := newPair(t, fabric.AccessRemoteWrite|fabric.AccessRemoteRead, 0)
			b.receive(dataSegment(addressOf(b.data), 8, b.lkey))
			copy(a.data, "a window")
			before := bytes.Clone(b.data)
			a.post(test.wqe(f, a, b))
			now := time.Now()
			run(f, &now, time.Millisecond)
			require.Equal(t, []syndrome{test.cause}, causes(a.completions()))
			require.Equal(t, test.remote, causes(b.completions()))
			require.Equal(t, test.cause == 0 && test.remote == nil, bytes.Contains(b.data, []byte("a window")))
			if test.cause != 0 {
				require.Equal(t, before, b.data)
			}
			require.Empty(t, f.Violations())
		})
	}
}

func TestAWQEBehindAUMRIsFenced(t *testing.T) {
	for _, mode := range []byte{0, fenceReads} {
		f, _, b := newPair(t, fabric.AccessRemoteWrite, 0)
		key := b.bound(f, fabric.TypeTwo, mayWrite)
		wqe := b.umr(key, b.freeTwo())
		wqe[11] = ctrlSignal | mode<<5
		b.post(wqe)
		now := time.Now()
		run(f, &now, time.Millisecond)
		require.Equal(t, []syndrome{0}, causes(b.completions()))
		require.Len(t, f.Violations(), 1)
		require.Contains(t, f.Violations()[0], "not fenced")
	}
}

func TestAPDWithAWindowIsNotFreed(t *testing.T) {
	e := newEndpoint(t, fabric.New())
	pd := e.pd()
	handle, _ := e.window(pd, fabric.TypeTwo)
	_, errno := e.call(deallocate, words(pd), nil)
	require.Equal(t, unix.EBUSY, errno)
	e.must(deallocateMW, words(handle), nil)
	require.Empty(t, e.device.Windows)
	e.must(deallocate, words(pd), nil)
}
