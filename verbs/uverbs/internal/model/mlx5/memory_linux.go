//go:build amd64 || arm64

package mlx5

import "github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"

type protectionDomain struct {
	handle uint32
	users  int
}

type memoryRegion struct {
	handle  uint32
	pd      *protectionDomain
	memory  *frame.Process
	key     uint32
	start   uint64 // in the program's memory
	address uint64 // as requests name it
	length  uint64
	access  uint32
}

// A piece is memory that a request may access.
type piece struct {
	memory *frame.Process
	addr   uint64
	size   uint64
}

// resolve checks a key for a range and an access, and returns the memory.
func (d *Device) resolve(pd *protectionDomain, key uint32, addr, size uint64, access uint32) (piece, bool) {
	m := d.keys[key]
	if m == nil || m.pd != pd || m.access&access != access || addr < m.address || addr-m.address > m.length ||
		size > m.length-(addr-m.address) {
		return piece{}, false
	}
	return piece{m.memory, m.start + (addr - m.address), size}, true
}

// resolveList does the same for a list, of which at most limit bytes are needed.
func (d *Device) resolveList(pd *protectionDomain, list []scatter, access uint32, limit uint64) ([]piece, bool) {
	var pieces []piece
	for _, s := range list {
		if limit == 0 {
			break
		}
		p, ok := d.resolve(pd, s.key, s.addr, uint64(s.size), access)
		if !ok {
			return nil, false
		}
		p.size = min(p.size, limit)
		limit -= p.size
		pieces = append(pieces, p)
	}
	return pieces, true
}

// transfer copies from one list of pieces to another of at least the same length, through
// a buffer.
func transfer(to, from []piece, buffer []byte) error {
	for len(from) > 0 && len(to) > 0 {
		n := min(from[0].size, to[0].size, uint64(len(buffer)))
		if err := from[0].memory.Read(from[0].addr, buffer[:n]); err != nil {
			return err
		}
		if err := to[0].memory.Write(to[0].addr, buffer[:n]); err != nil {
			return err
		}
		from, to = advance(from, n), advance(to, n)
	}
	return nil
}

// store copies bytes to pieces.
func store(to []piece, b []byte) error {
	for _, p := range to {
		n := min(p.size, uint64(len(b)))
		if err := p.memory.Write(p.addr, b[:n]); err != nil {
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
