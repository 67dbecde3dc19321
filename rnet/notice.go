package rnet

import (
	"encoding/binary"
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// notices stand in for immediates on devices that have none (iWARP, RFC 5040):
// a message is an RDMA WRITE without immediate, followed by a SEND of what the
// completion of a WRITE_WITH_IMM would have told the receiver. RFC 5040,
// section 5.5, has the SEND delivered after what was written before it has
// been placed. docs/protocol.md, section 3, has it too:
//
//	0  u32 immediate
//	4  u32 bytes written; 0 for a credit message, which has no WRITE
//
// A short message goes into the SEND itself, and there is no WRITE: a SEND of
// frameHeaderLen bytes or more is a message of that length. That is half the
// work for both devices, and a small message is hardly anything else.
//
// Each receive has a place for one in registered memory. A receive queue hands
// out its entries in the order in which they were posted, so the places go
// round.
type notices struct {
	mr    *verbs.MR
	place int          // bytes of a place
	sges  []verbs.SGE  // one for each place
	sink  [1]verbs.SGE // where the answers to probes go
	next  int          // place of the next receive to post
	out   [noticeLen]byte
	outs  [1][]byte
	pair  [2]verbs.SendWR
	posts [repostBatch]verbs.RecvWR
}

const (
	noticeLen = 8
	// shortMessage is the longest message that may come in a SEND, if the
	// hello says that there is room for it.
	shortMessage = 128
)

// copiedWrite is from which length WRITEs ask for a completion of their own.
// One that does not, of a page or more, the kernel's siw driver sends from
// where it lies (siw_qp_prepare_tx), and is done with it, and with all before
// it, when TCP has taken it: by the time that TCP sends it, or sends it again,
// the memory could hold something else. It copies those that do.
const copiedWrite = 4 << 10

// alloc makes places for so many receives, and one for the answers to probes.
// Where memory is short they have room for notices only.
func (n *notices) alloc(pd *verbs.PD, receives int) (err error) {
	n.place = shortMessage
	n.mr, err = pd.AllocMR((receives+1)*n.place, verbs.AccessLocalWrite, verbs.MROptions{})
	if err != nil && isShort(err) {
		n.place = noticeLen
		n.mr, err = pd.AllocMR((receives+1)*n.place, verbs.AccessLocalWrite, verbs.MROptions{})
	}
	if err != nil {
		return err
	}
	n.sges = make([]verbs.SGE, receives)
	for i := range n.sges {
		n.sges[i] = n.mr.SGE(i*n.place, n.place)
	}
	n.sink[0] = n.mr.SGE(receives*n.place, noticeLen)
	n.outs[0] = n.out[:]
	return nil
}

// receives returns up to count receives that follow those posted before. The
// caller tells with posted how many the device took.
func (n *notices) receives(count int) []verbs.RecvWR {
	wrs := n.posts[:min(count, len(n.posts))]
	for i := range wrs {
		at := (n.next + i) % len(n.sges)
		wrs[i] = verbs.RecvWR{ID: uint64(at), SGL: n.sges[at : at+1]}
	}
	return wrs
}

func (n *notices) posted(count int) { n.next = (n.next + count) % len(n.sges) }

// read turns the completion of a receive into that of a WRITE_WITH_IMM. A short
// message is returned; it lies in its place until the receive is posted again.
func (n *notices) read(wc *verbs.WC) (short []byte, err error) {
	if wc.ID >= uint64(len(n.sges)) || wc.ByteLen > uint32(n.place) || wc.ByteLen < frameHeaderLen && wc.ByteLen != noticeLen {
		return nil, fmt.Errorf("%w: SEND of %d bytes in place %d", errProtocol, wc.ByteLen, wc.ID)
	}
	wc.Opcode = verbs.WCRecvWriteWithImm
	sent := n.mr.Bytes()[wc.ID*uint64(n.place):][:wc.ByteLen:wc.ByteLen]
	if wc.ByteLen != noticeLen {
		wc.Imm = immFrames
		return sent, nil
	}
	wc.Imm = binary.LittleEndian.Uint32(sent)
	wc.ByteLen = binary.LittleEndian.Uint32(sent[4:])
	return nil, nil
}

// split returns the work requests that do without an immediate what wr, a
// WRITE_WITH_IMM, does. They are valid until the next call.
func (n *notices) split(wr *verbs.SendWR) []verbs.SendWR {
	length := wr.Len()
	binary.LittleEndian.PutUint32(n.out[0:], wr.Imm)
	binary.LittleEndian.PutUint32(n.out[4:], uint32(length))
	n.pair[1] = verbs.SendWR{ID: wr.ID, Opcode: verbs.OpSend, Flags: wr.Flags | verbs.SendInline, Inline: n.outs[:]}
	if length == 0 {
		return n.pair[1:]
	}
	n.pair[0] = *wr
	n.pair[0].Opcode = verbs.OpWrite
	n.pair[0].ID = 0 // the SEND's completion accounts for both
	n.pair[0].Flags &^= verbs.SendSignaled
	if length >= copiedWrite {
		n.pair[0].Flags |= verbs.SendSignaled
	}
	return n.pair[:]
}
