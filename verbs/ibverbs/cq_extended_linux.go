//go:build amd64 || arm64

package ibverbs

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// takeExtended is take for a CQ whose completions have a time. The library shows one
// completion after the other, and holds its lock of the CQ meanwhile; each field is told by a
// call. The caller holds mu.
func (c *cq) takeExtended(wcs []verbs.WC) (n int, all bool) {
	x := view[ibvCQEx](c.address)
	attr := view[ibvPollCQAttr](uintptr(unsafe.Pointer(&c.room.mem[0])))
	*attr = ibvPollCQAttr{}
	start := call{fn: x.startPoll, args: [6]uintptr{c.address, uintptr(unsafe.Pointer(attr))}}
	poll, begun := start, false
	for n < len(wcs) {
		poll.do()
		answer := int32(poll.result)
		if answer == 0 {
			c.describe(x, &wcs[n])
			if !begun && wcs[n].Timestamp != 0 && c.dev.clock.hz != 0 {
				c.dev.clock.seen(wcs[n].Timestamp, c.ask(x.readWallTime))
			}
			if !c.marked(&wcs[n]) {
				n++
			}
			poll, begun = call{fn: x.nextPoll, args: [6]uintptr{c.address}}, true
			continue
		}
		if answer != int32(unix.ENOENT) {
			if c.passesOver() {
				if begun {
					c.ask(x.endPoll)
				}
				poll, begun = start, false
				continue
			}
			c.broken = errAnswer(int(answer))
		}
		all = true
		break
	}
	if begun {
		c.ask(x.endPoll)
	}
	return n, all
}

// ask calls one of the functions that tell of the completion that is looked at.
func (c *cq) ask(fn uintptr) uint64 {
	q := call{fn: fn, args: [6]uintptr{c.address}}
	q.do()
	return uint64(q.result)
}

// describe makes what poll_cq would give of the completion that is looked at, and translates that.
func (c *cq) describe(x *ibvCQEx, to *verbs.WC) {
	wc := ibvWC{wrID: x.wrID, status: x.status, qpNum: uint32(c.ask(x.readQPNum))}
	if wc.status != int32(verbs.WCSuccess) {
		wc.vendorErr = uint32(c.ask(x.readVendorErr))
		c.dev.translate(&wc, to)
		return
	}
	wc.opcode, wc.wcFlags, wc.byteLen = int32(c.ask(x.readOpcode)), uint32(c.ask(x.readWCFlags)), uint32(c.ask(x.readByteLen))
	if wc.wcFlags&uint32(verbs.WCWithImm|verbs.WCWithInv) != 0 {
		wc.imm = uint32(c.ask(x.readImm))
	}
	if wc.opcode >= int32(verbs.WCRecv) {
		wc.srcQP, wc.slid = uint32(c.ask(x.readSrcQP)), uint16(c.ask(x.readSLID))
		wc.sl, wc.dlidPathBits = uint8(c.ask(x.readSL)), uint8(c.ask(x.readDLIDPathBits))
	}
	c.dev.translate(&wc, to)
	to.Timestamp = c.ask(x.readTimestamp)
}
