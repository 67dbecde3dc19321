//go:build amd64 || arm64

package mlx5

import (
	"fmt"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// memory is memory of the device (MEMIC). The processor may copy it by words of four bytes alone, at
// multiples of that (rdma-core, providers/mlx5/verbs.c, mlx5_access_dm).
type memory struct {
	mem    driver.Memory
	mapped []byte // whole pages
	bytes  []byte // of these, what was asked for
}

const (
	wordSize  = 4
	pieceSize = 1024
)

// AllocDM maps the pages in which the kernel has put the memory.
func (c *context) AllocDM(length int, alloc func([]driver.Attr) error) (driver.DM, error) {
	var begin uint64
	var page uint16
	err := alloc([]driver.Attr{{ID: attrMemoryOffset, Out: abi.BytesOf(&begin)}, {ID: attrMemoryPage, Out: abi.BytesOf(&page)}})
	if err != nil {
		return nil, err
	}
	size := (length + pageSize - 1) &^ (pageSize - 1) // what the kernel wants mapped, whole
	if begin%wordSize != 0 || begin > uint64(size-length) {
		return nil, fmt.Errorf("%w: the kernel gives memory of %d bytes at %#x of %d", verbs.ErrInvalid, length, begin, size)
	}
	mapped, err := c.mem.Map(memoryPage(page)*pageSize, size, driver.MayRead|driver.MayWrite)
	if err != nil {
		return nil, err
	}
	return &memory{mem: c.mem, mapped: mapped, bytes: mapped[begin:][:length]}, nil
}

// memoryPage is the page by which the kernel maps memory of the device: the upper byte of the
// index is beyond the command (mlx5.h of rdma-core, set_extended_index).
func memoryPage(index uint16) uint64 {
	return uint64(index)>>8<<16 | mmapMemory<<8 | uint64(index)&0xff
}

func (m *memory) Read(b []byte, offset int) error {
	return m.eachPiece(b, offset, func(b, ofDevice []byte) {
		loadWords(unsafe.SliceData(b), unsafe.SliceData(ofDevice), len(b)/wordSize)
	})
}

func (m *memory) Write(b []byte, offset int) error {
	return m.eachPiece(b, offset, func(b, ofDevice []byte) {
		storeWords(unsafe.SliceData(ofDevice), unsafe.SliceData(b), len(b)/wordSize)
	})
}

// eachPiece copies b in pieces. A load from a card takes about a microsecond, and no goroutine can be
// stopped in assembly: all would wait for the whole copy when the garbage collector stops them.
func (m *memory) eachPiece(b []byte, offset int, copy func(b, ofDevice []byte)) error {
	if len(b)%wordSize != 0 || offset%wordSize != 0 {
		return fmt.Errorf("%w: %d bytes at %d, where the device takes words of %d", verbs.ErrInvalid, len(b), offset, wordSize)
	}
	for ofDevice := m.bytes[offset:][:len(b)]; len(b) > 0; {
		n := min(len(b), pieceSize)
		copy(b[:n], ofDevice[:n])
		b, ofDevice = b[n:], ofDevice[n:]
	}
	return nil
}

func (m *memory) Unmap() { m.mem.Unmap(m.mapped) }
