//go:build amd64 || arm64

package mlx5

import (
	"sync/atomic"
	"unsafe"
)

// Layout of what a program maps of the device node: the offset is (command << 8 | page) *
// page size (include/uapi/rdma/mlx5-abi.h, MLX5_IB_MMAP_*; mlx5_ib_mmap of the kernel). Each
// command has pages of its own here.
const (
	pageSize     = 4096
	uarPages     = 8
	mmapRegular  = 0 // write-combining where the platform has it
	mmapNonCache = 3
	nodePages    = (mmapNonCache<<8 + uarPages) * pageSize

	bfregs       = 2 * uarPages // of each page two that are not for fast paths
	bfregSize    = 512
	bfregOffset  = 0x800
	cqRegister   = 0x20
	bfregsOfPage = 4
)

// taken is what the model leaves in a register that it has looked at. No doorbell has this
// value: its command, or its WQE index with its opcode, do not exist.
const taken = ^uint64(0)

// registers are the doorbells of a context: of each page the one of CQs, and the two halves
// of each BlueFlame register. What was stored is replaced by [taken], so that each later
// store is seen, the same value again too.
type registers []*atomic.Uint64

func newRegisters(pages []byte) registers {
	var r registers
	for _, command := range []int{mmapRegular, mmapNonCache} {
		for page := range uarPages {
			base := (command<<8 + page) * pageSize
			offsets := []int{cqRegister}
			for half := range 2 * bfregsOfPage {
				offsets = append(offsets, bfregOffset+half*bfregSize/2)
			}
			for _, o := range offsets {
				register := (*atomic.Uint64)(unsafe.Pointer(&pages[base+o]))
				register.Store(taken)
				r = append(r, register)
			}
		}
	}
	return r
}

// take says whether a register was written since the last call.
func (r registers) take() bool {
	found := false
	for _, register := range r {
		if register.Load() != taken {
			register.Store(taken)
			found = true
		}
	}
	return found
}
