package uverbs

import "github.com/seed-b9b531af/ramjet/verbs"

// siwCQ is a completion queue of siw: a power of two of struct siw_cqe, then
// the word by which it is armed.
//
//	word            written by
//	an element      the kernel while its flags are 0, the flags last
//	its word        us, when the completion was copied: 0
//	control         us to arm, the kernel when it sends the event: 0
type siwCQ struct {
	mem     memory
	ring    siwRing
	control int // offset in ring.mem
}

func (c *siwContext) createCQ(create func(extra) error) (cqQueue, error) {
	var out siwCreateCQOut
	if err := create(extra{out: bytesOf(&out)}); err != nil {
		return nil, err
	}
	n := out.numCQE
	if n == 0 || n&(n-1) != 0 || n > siwMaxQueue {
		return nil, errSiwQueue
	}
	control := int(n) * sizeOf[siwCQE]()
	b, err := c.mem.mmap(out.cqKey, control+sizeOf[siwCQControl](), mayRead|mayWrite)
	if err != nil {
		return nil, err
	}
	wordAt(b, control).Store(siwNotifyNot)
	return &siwCQ{mem: c.mem, ring: siwRing{mem: b, size: sizeOf[siwCQE](), mask: n - 1}, control: control}, nil
}

func (c *siwCQ) poll(wcs []verbs.WC, _ qpTable) (int, error) {
	n := 0
	for ; n < len(wcs); n++ {
		word := c.ring.word(c.ring.next)
		w := word.Load()
		flags, opcode, status := siwUnpackCQE(w)
		if flags&siwValid == 0 {
			break
		}
		cqe := *viewAt[siwCQE](c.ring.element(c.ring.next), 0)
		wcs[n] = siwWC(&cqe, opcode, status)
		if flags&siwRemInval != 0 && wcs[n].Status == verbs.WCSuccess {
			wcs[n].Flags, wcs[n].Imm = verbs.WCWithInv, uint32(cqe.invalStag)
		}
		word.Store(0)
		c.ring.next++
	}
	return n, nil
}

// siwStatuses are the statuses of completions in the order of enum
// siw_wc_status.
var siwStatuses = [...]verbs.WCStatus{
	verbs.WCSuccess, verbs.WCLocLenErr, verbs.WCLocProtErr, verbs.WCLocQPOpErr, verbs.WCWRFlushErr,
	verbs.WCBadRespErr, verbs.WCLocAccessErr, verbs.WCRemAccessErr, verbs.WCRemInvReqErr, verbs.WCGeneralErr,
}

// siwOpcode is what an operation completes as.
func siwOpcode(op uint8) (verbs.WCOpcode, bool) {
	switch op {
	case siwOpWrite:
		return verbs.WCWrite, true
	case siwOpRead, siwOpReadLocalInv:
		return verbs.WCRead, true
	case siwOpSend, siwOpSendRemoteInv:
		return verbs.WCSend, true
	case siwOpReceive:
		return verbs.WCRecv, true
	}
	return 0, false
}

func siwWC(cqe *siwCQE, opcode uint8, status uint16) verbs.WC {
	wc := verbs.WC{ID: cqe.id, QPN: uint32(cqe.qpID), Status: verbs.WCGeneralErr, VendorErr: uint32(status)}
	if int(status) < len(siwStatuses) {
		wc.Status = siwStatuses[status]
	}
	if wc.Status != verbs.WCSuccess {
		return wc
	}
	op, ok := siwOpcode(opcode)
	if !ok {
		wc.Status = verbs.WCGeneralErr
		return wc
	}
	wc.Opcode, wc.ByteLen = op, cqe.bytes
	return wc
}

// arm writes a word; the kernel looks at it after it has written a
// completion. It always asks for any completion: the kernel's driver counts no
// receive as solicited, so that to ask for solicited ones would be to sleep
// through them (siw_rqe_complete of drivers/infiniband/sw/siw/siw_qp.c).
func (c *siwCQ) arm(bool) bool {
	wordAt(c.ring.mem, c.control).Store(siwNotifySolicited | siwNotifyNext)
	return true
}

// resize lets the kernel say that siw cannot.
func (c *siwCQ) resize(_ int, resize func(extra) error) error { return resize(extra{}) }

func (c *siwCQ) unmap() { c.mem.unmap(c.ring.mem) }
