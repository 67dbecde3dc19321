//go:build amd64 || arm64

package fabric

import "github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"

// A PD is a protection domain. It cannot be freed while it has users.
type PD struct{ Users int }

// A DeviceMemory is memory of the device. It cannot be freed while it has users.
type DeviceMemory struct{ Users int }

// A Region is registered memory.
type Region struct {
	Handle  uint32
	PD      *PD
	Device  *DeviceMemory // whose memory it is, nil of a program's
	Memory  *frame.Process
	Key     uint32
	Start   uint64 // in the process's memory
	Address uint64 // as requests name it
	Length  uint64
	Access  uint32
	touched bool // a receive of an SRQ has led there, if it is on demand
}

// DumpFillKey is the key of no memory, which requests of any PD may name in their lists:
// what is read there is zero, and what is written is lost (dump_fill_mkey). No region has
// it, whose keys begin with a number.
const DumpFillKey = 0xd7

// A piece is memory that a request may access, or that of DumpFillKey.
type piece struct {
	memory *frame.Process // nil: none
	addr   uint64
	size   uint64
}

func (p *piece) read(b []byte) error {
	if p.memory == nil {
		clear(b)
		return nil
	}
	return p.memory.Read(p.addr, b)
}

func (p *piece) write(b []byte) error {
	if p.memory == nil {
		return nil
	}
	return p.memory.Write(p.addr, b)
}

// faults says whether a page is missing behind a receive of an SRQ. Of each region on demand that is so
// once: then the kernel has paged in what was missing.
func (p *Port) faults(list []Scatter) (is bool) {
	for _, s := range list {
		if m := p.Regions[s.Key]; m != nil && m.Access&AccessOnDemand != 0 && !m.touched {
			m.touched, is = true, true
		}
	}
	return is
}

// resolve checks a key for a range and an access, and returns the memory.
func (p *Port) resolve(pd *PD, key uint32, addr, size uint64, access uint32) (piece, bool) {
	if key == DumpFillKey && access&^AccessLocalWrite == 0 {
		return piece{size: size}, true
	}
	m := p.Regions[key]
	if m == nil || m.PD != pd || m.Access&access != access || addr < m.Address || addr-m.Address > m.Length ||
		size > m.Length-(addr-m.Address) {
		return piece{}, false
	}
	return piece{m.Memory, m.Start + (addr - m.Address), size}, true
}

// resolveList does the same for a list, of which at most limit bytes are needed.
func (p *Port) resolveList(pd *PD, list []Scatter, access uint32, limit uint64) ([]piece, bool) {
	var pieces []piece
	for _, s := range list {
		if limit == 0 {
			break
		}
		found, ok := p.resolve(pd, s.Key, s.Addr, uint64(s.Size), access)
		if !ok {
			return nil, false
		}
		found.size = min(found.size, limit)
		limit -= found.size
		pieces = append(pieces, found)
	}
	return pieces, true
}

// transfer copies from one list of pieces to another of at least the same length, through
// a buffer.
func transfer(to, from []piece, buffer []byte) error {
	for len(from) > 0 && len(to) > 0 {
		n := min(from[0].size, to[0].size, uint64(len(buffer)))
		if err := from[0].read(buffer[:n]); err != nil {
			return err
		}
		if err := to[0].write(buffer[:n]); err != nil {
			return err
		}
		from, to = advance(from, n), advance(to, n)
	}
	return nil
}

// store copies bytes to pieces.
func store(to []piece, b []byte) error {
	for i := range to {
		n := min(to[i].size, uint64(len(b)))
		if err := to[i].write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// advance returns what is left of pieces after n bytes of the first.
func advance(pieces []piece, n uint64) []piece {
	first := pieces[0]
	if first.size == n {
		return pieces[1:]
	}
	first.addr += n
	first.size -= n
	return append([]piece{first}, pieces[1:]...)
}
