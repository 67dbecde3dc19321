package siw

import (
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// cq is a completion queue of siw: a power of two of struct siw_cqe, then
// the word by which it is armed.
//
//	word            written by
//	an element      the kernel while its flags are 0, the flags last
//	its word        us, when the completion was copied: 0
//	control         us to arm, the kernel when it sends the event: 0
type cq struct {
	mem     driver.Memory
	ring    ring
	control int // offset in ring.mem
}

func (c *context) CreateCQ(cqe int, create func(int, driver.Udata) error) (driver.CQ, error) {
	var out createCQOut
	if err := create(cqe, driver.Udata{Out: abi.BytesOf(&out)}); err != nil {
		return nil, err
	}
	n := out.numCQE
	if n == 0 || n&(n-1) != 0 || n > maxQueue {
		return nil, errQueue
	}
	control := int(n) * abi.SizeOf[cqEntry]()
	b, err := c.mem.Map(out.cqKey, control+abi.SizeOf[cqControl](), driver.MayRead|driver.MayWrite)
	if err != nil {
		return nil, err
	}
	abi.WordAt(b, control).Store(notifyNot)
	return &cq{mem: c.mem, ring: ring{mem: b, size: abi.SizeOf[cqEntry](), mask: n - 1}, control: control}, nil
}

func (c *cq) Poll(wcs []verbs.WC, _ driver.QPs) (int, error) {
	n := 0
	for ; n < len(wcs); n++ {
		word := c.ring.word(c.ring.next)
		w := word.Load()
		flags, opcode, status := unpackCQE(w)
		if flags&flagValid == 0 {
			break
		}
		cqe := *abi.ViewAt[cqEntry](c.ring.element(c.ring.next), 0)
		wcs[n] = wcOf(&cqe, opcode, status)
		if flags&flagRemInval != 0 && wcs[n].Status == verbs.WCSuccess {
			wcs[n].Flags, wcs[n].Imm = verbs.WCWithInv, uint32(cqe.invalStag)
		}
		word.Store(0)
		c.ring.next++
	}
	return n, nil
}

// statuses are the statuses of completions in the order of enum
// siw_wc_status.
var statuses = [...]verbs.WCStatus{
	verbs.WCSuccess, verbs.WCLocLenErr, verbs.WCLocProtErr, verbs.WCLocQPOpErr, verbs.WCWRFlushErr,
	verbs.WCBadRespErr, verbs.WCLocAccessErr, verbs.WCRemAccessErr, verbs.WCRemInvReqErr, verbs.WCGeneralErr,
}

// wcOpcode is what an operation completes as.
func wcOpcode(op uint8) (verbs.WCOpcode, bool) {
	switch op {
	case opWrite:
		return verbs.WCWrite, true
	case opRead, opReadLocalInv:
		return verbs.WCRead, true
	case opSend, opSendRemoteInv:
		return verbs.WCSend, true
	case opReceive:
		return verbs.WCRecv, true
	}
	return 0, false
}

func wcOf(cqe *cqEntry, opcode uint8, status uint16) verbs.WC {
	wc := verbs.WC{ID: cqe.id, QPN: uint32(cqe.qpID), Status: verbs.WCGeneralErr, VendorErr: uint32(status)}
	if int(status) < len(statuses) {
		wc.Status = statuses[status]
	}
	if wc.Status != verbs.WCSuccess {
		return wc
	}
	op, ok := wcOpcode(opcode)
	if !ok {
		wc.Status = verbs.WCGeneralErr
		return wc
	}
	wc.Opcode, wc.ByteLen = op, cqe.bytes
	return wc
}

// Arm writes a word; the kernel looks at it after it has written a
// completion. It always asks for any completion: the kernel's driver counts no
// receive as solicited, so that to ask for solicited ones would be to sleep
// through them (siw_rqe_complete of drivers/infiniband/sw/siw/siw_qp.c).
func (c *cq) Arm(bool) bool {
	abi.WordAt(c.ring.mem, c.control).Store(notifySolicited | notifyNext)
	return true
}

// Resize lets the kernel say that siw cannot.
func (c *cq) Resize(cqe int, resize func(int, driver.Udata) error) error {
	return resize(cqe, driver.Udata{})
}

func (c *cq) Unmap() { c.mem.Unmap(c.ring.mem) }
