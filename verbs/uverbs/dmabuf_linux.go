package uverbs

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// The native method REG_DMABUF_MR (rdma/ib_user_ioctl_cmds.h, kernel 5.12)
// and its attributes.
const (
	objectMR          = 7
	methodRegDMABuf   = 4
	attrDMABufHandle  = 0
	attrDMABufPD      = 1
	attrDMABufOffset  = 2
	attrDMABufLength  = 3
	attrDMABufIOVA    = 4
	attrDMABufFD      = 5
	attrDMABufAccess  = 6
	attrDMABufOutLKey = 7
	attrDMABufOutRKey = 8
)

// RegisterDMABuf registers a piece of a DMA buffer, for instance of a GPU.
func (p *pd) RegisterDMABuf(fd int, offset uint64, length int, iova uint64, access verbs.Access) (verbs.MRDriver, error) {
	r := &region{dev: p.dev, addr: iova}
	err := p.end.use(func() error { return r.registerDMABuf(p, fd, offset, length, access) })
	if err != nil {
		return nil, err
	}
	r, err = r.list()
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (r *region) registerDMABuf(p *pd, fd int, offset uint64, length int, access verbs.Access) error {
	d := p.dev
	d.life.RLock()
	defer d.life.RUnlock()
	if d.closed {
		return verbs.ErrClosed
	}
	page, err := takePage()
	if err != nil {
		return err
	}
	defer returnPage(page)
	call := layDMABuf(page, regDMABuf{pd: p.handle, fd: int32(fd), offset: offset, length: uint64(length), iova: r.addr, access: access})
	if err := call.run(d); err != nil {
		return d.failed("REG_DMABUF_MR", err)
	}
	r.handle = uint32(call.attr(0))
	r.lkey, r.rkey = *viewAt[uint32](page, pageOut), *viewAt[uint32](page, pageOut+8)
	return nil
}

// regDMABuf is what REG_DMABUF_MR is told.
type regDMABuf struct {
	pd                   uint32
	fd                   int32
	offset, length, iova uint64
	access               verbs.Access
}

// layDMABuf lays the call out on a page. The kernel puts the keys at pageOut
// and eight bytes behind it.
func layDMABuf(page []byte, m regDMABuf) ioctlCall {
	call := ioctlCall{page: page, object: objectMR, method: methodRegDMABuf}
	call.handle(attrDMABufHandle, 0) // where the kernel puts that of the new region
	call.handle(attrDMABufPD, uint64(m.pd))
	call.constant(attrDMABufOffset, m.offset)
	call.constant(attrDMABufLength, m.length)
	call.constant(attrDMABufIOVA, m.iova)
	*viewAt[int32](page, pageIn) = m.fd
	call.in(attrDMABufFD, pageIn, 4)
	*viewAt[uint32](page, pageIn+8) = uint32(m.access)
	call.in(attrDMABufAccess, pageIn+8, 4)
	call.out(attrDMABufOutLKey, pageOut, 4)
	call.out(attrDMABufOutRKey, pageOut+8, 4)
	return call
}

// hasDMABuf finds out whether the driver takes DMA buffers, by a descriptor
// that is none.
func (d *device) hasDMABuf() bool {
	p, err := d.allocPD()
	if err != nil {
		return false
	}
	defer p.Dealloc()
	err = new(region).registerDMABuf(p, -1, 0, pageSize, verbs.AccessLocalWrite)
	return errors.Is(err, unix.EBADF)
}
