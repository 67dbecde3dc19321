//go:build amd64 || arm64

package mlx5

import (
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// xrcSRQs are the SRQs of XRC domains. The completion of a receive names its SRQ, and a QP that
// may be another process's. Of version 0 that is the number of any SRQ, and 0 without one. Of
// version 1 it is the index that the SRQ or the QP was made with: QPs have 0, and SRQs of
// domains one of their own.
type xrcSRQs struct {
	byNumber bool // completions are of version 0

	mu   sync.Mutex
	last uint32 // guarded by mu: the index that was given out last

	// table has them by index, or by number. It is replaced under mu, so that who polls needs
	// no lock; nil is one in which there never was any.
	table atomic.Pointer[map[uint32]*srq]
}

// CreateXRCSRQ makes an SRQ that completions name.
func (c *context) CreateXRCSRQ(attr verbs.SRQAttr, create func(driver.Udata) (uint32, error)) (driver.SRQ, error) {
	index, err := c.xrc.newIndex()
	if err != nil {
		return nil, err
	}
	number := uint32(0)
	s, err := c.newSRQ(attr, index, func(u driver.Udata) (err error) {
		if number, err = create(u); err == nil && number&0xffffff == 0 {
			err = fmt.Errorf("%w: the kernel gives an SRQ of an XRC domain the number %#x", verbs.ErrInvalid, number)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	s.number = number
	if c.xrc.byNumber {
		index = number
	}
	c.xrc.add(s, index&0xffffff) // nothing completes before its first receive
	return s, nil
}

// newIndex returns one that no SRQ has, or that of all for devices that go by numbers.
func (x *xrcSRQs) newIndex() (uint32, error) {
	if x.byNumber {
		return defaultIndex, nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	table := x.load()
	if len(table) >= maxEntries {
		return 0, fmt.Errorf("%w: %d SRQs of XRC domains", verbs.ErrInvalid, len(table))
	}
	for {
		if x.last++; x.last == defaultIndex {
			x.last = 1
		}
		if table[x.last] == nil {
			return x.last, nil
		}
	}
}

func (x *xrcSRQs) add(s *srq, index uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s.index = index
	table := maps.Clone(x.load())
	if table == nil {
		table = make(map[uint32]*srq)
	}
	table[index] = s
	x.table.Store(&table)
}

// remove is called for any SRQ.
func (x *xrcSRQs) remove(s *srq) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.load()[s.index] != s {
		return
	}
	table := maps.Clone(x.load())
	delete(table, s.index)
	x.table.Store(&table)
}

// load returns the table, which nobody changes.
func (x *xrcSRQs) load() map[uint32]*srq {
	if table := x.table.Load(); table != nil {
		return *table
	}
	return nil
}

// of returns the SRQ of a CQE, and whether it is of one of a domain at all; that may be gone: nil.
func (x *xrcSRQs) of(cqe *entry, last uint32) (s *srq, is bool) {
	if table := x.table.Load(); table != nil {
		return x.find(*table, cqe, last)
	}
	return nil, false
}

func (x *xrcSRQs) find(table map[uint32]*srq, cqe *entry, last uint32) (s *srq, is bool) {
	switch last >> 4 & 0xf {
	case cqeWriteImm, cqeRecv, cqeRecvImm, cqeRecvInv, cqeResponseError:
	default:
		return nil, false
	}
	index := be.Uint32(cqe[cqeIndex:]) & 0xffffff
	s = table[index]
	return s, s != nil || index != 0 && !x.byNumber
}

// read translates a CQE of an SRQ of a domain, with the QP that it names, and reports whether the
// program is to see it. Those of one that is gone are for nobody.
func (s *srq) read(wc *verbs.WC, cqe *entry, qpn, last uint32) (wanted bool, err error) {
	if s == nil {
		return false, nil
	}
	*wc = verbs.WC{QPN: qpn, SrcQPN: s.number}
	if err := wcOfReceive(wc, cqe, last); err != nil {
		return false, err
	}
	wc.Flags |= driver.OfXRC
	return s.completed(wc, uint16(last>>16))
}
