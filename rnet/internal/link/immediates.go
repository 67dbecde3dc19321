package link

import (
	"encoding/binary"
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// emulation does without immediates, on devices that have none (iWARP, RFC 5040): a
// message is an RDMA WRITE without immediate, followed by a SEND of what the
// completion of a WRITE_WITH_IMM would have told the receiver. RFC 5040,
// section 5.5, has the SEND delivered after what was written before it has
// been placed. docs/protocol.md, section 3, has it too:
//
//	0  u32 immediate
//	4  u32 bytes written; 0 for a credit message, which has no WRITE
//
// That SEND stands for the immediate.
//
// A short message goes into the SEND itself, and there is no WRITE: a SEND of
// HeaderLen bytes or more is a message of that length. That is half the
// work for both devices, and a small message is hardly anything else.
//
// Each receive has a place for one in registered memory. A receive queue hands
// out its entries in the order in which they were posted, so the places go
// round.
type emulation struct {
	mr    *verbs.MR
	place int          // bytes of a place
	sges  []verbs.SGE  // one for each place
	sink  [1]verbs.SGE // where the answers to probes go
	next  int          // place of the next receive to post
	out   [immediateSendLen]byte
	outs  [1][]byte
	pair  [2]verbs.SendWR
	posts [repostBatch]verbs.RecvWR
}

const (
	immediateSendLen = 8
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
// Where memory is short they have room for that only.
func (m *emulation) alloc(pd *verbs.PD, receives int) (err error) {
	m.place = shortMessage
	m.mr, err = pd.AllocMR((receives+1)*m.place, verbs.AccessLocalWrite, verbs.MROptions{})
	if err != nil && isShort(err) {
		m.place = immediateSendLen
		m.mr, err = pd.AllocMR((receives+1)*m.place, verbs.AccessLocalWrite, verbs.MROptions{})
	}
	if err != nil {
		return err
	}
	m.sges = make([]verbs.SGE, receives)
	for i := range m.sges {
		m.sges[i] = m.mr.SGE(i*m.place, m.place)
	}
	m.sink[0] = m.mr.SGE(receives*m.place, immediateSendLen)
	m.outs[0] = m.out[:]
	return nil
}

// receives returns up to count receives that follow those posted before. The
// caller tells with posted how many the device took.
func (m *emulation) receives(count int) []verbs.RecvWR {
	wrs := m.posts[:min(count, len(m.posts))]
	for i := range wrs {
		at := (m.next + i) % len(m.sges)
		wrs[i] = verbs.RecvWR{ID: uint64(at), SGL: m.sges[at : at+1]}
	}
	return wrs
}

func (m *emulation) posted(count int) { m.next = (m.next + count) % len(m.sges) }

// read turns the completion of a receive into that of a WRITE_WITH_IMM. A short
// message is returned; it lies in its place until the receive is posted again.
func (m *emulation) read(wc *verbs.WC) (short []byte, err error) {
	if wc.ID >= uint64(len(m.sges)) || wc.ByteLen > uint32(m.place) || wc.ByteLen < HeaderLen && wc.ByteLen != immediateSendLen {
		return nil, fmt.Errorf("%w: SEND of %d bytes in place %d", ErrProtocol, wc.ByteLen, wc.ID)
	}
	wc.Opcode = verbs.WCRecvWriteWithImm
	sent := m.mr.Bytes()[wc.ID*uint64(m.place):][:wc.ByteLen:wc.ByteLen]
	if wc.ByteLen != immediateSendLen {
		wc.Imm = immFrames
		return sent, nil
	}
	wc.Imm = binary.LittleEndian.Uint32(sent)
	wc.ByteLen = binary.LittleEndian.Uint32(sent[4:])
	return nil, nil
}

// split returns the work requests that do without an immediate what wr, a
// WRITE_WITH_IMM, does. They are valid until the next call.
func (m *emulation) split(wr *verbs.SendWR) []verbs.SendWR {
	length := wr.Len()
	binary.LittleEndian.PutUint32(m.out[0:], wr.Imm)
	binary.LittleEndian.PutUint32(m.out[4:], uint32(length))
	m.pair[1] = verbs.SendWR{ID: wr.ID, Opcode: verbs.OpSend, Flags: wr.Flags | verbs.SendInline, Inline: m.outs[:]}
	if length == 0 {
		return m.pair[1:]
	}
	m.pair[0] = *wr
	m.pair[0].Opcode = verbs.OpWrite
	m.pair[0].ID = 0 // the SEND's completion accounts for both
	m.pair[0].Flags &^= verbs.SendSignaled
	if length >= copiedWrite {
		m.pair[0].Flags |= verbs.SendSignaled
	}
	return m.pair[:]
}
