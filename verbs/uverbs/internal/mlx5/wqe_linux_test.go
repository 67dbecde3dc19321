//go:build amd64 || arm64

package mlx5

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	model "github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/mlx5"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/modeltest"
)

// The programs of Debian post their requests by libmlx5, and the model sees the WQEs. Each of
// them is read as a request, and what this driver writes for that request is the same bit for bit.
// Left out are the bytes behind inline data, which nobody reads, and the UDP port of datagrams
// without a flow label, for which any will do; RoCE v1 has none, and libmlx5 leaves it 0.
func TestTheCLibraryWritesTheSameWQEs(t *testing.T) {
	ethernet := model.Config{Link: fabric.Ethernet}
	for _, c := range []struct {
		program string
		config  model.Config
		typ     verbs.QPType
		opcodes []byte // that are seen at least
	}{
		{"ib_send_bw -n 20", model.Config{}, verbs.QPTypeRC, []byte{opSend}},
		{"ib_send_lat -n 20 -I 128 -s 100", model.Config{}, verbs.QPTypeRC, []byte{opSend}},
		{"ib_send_lat -n 20 -I 16 -s 1 -c UC", model.Config{}, verbs.QPTypeRC, []byte{opSend}},
		{"ib_send_lat -n 20 -c UD", model.Config{}, verbs.QPTypeUD, []byte{opSend}},
		{"ib_write_bw -n 20", model.Config{}, verbs.QPTypeRC, []byte{opWrite}},
		{"ib_write_lat -n 20 -I 200 -s 190", model.Config{}, verbs.QPTypeRC, []byte{opWrite}},
		{"ib_read_bw -n 20", model.Config{}, verbs.QPTypeRC, []byte{opRead}},
		{"ib_atomic_bw -n 20 -A FETCH_AND_ADD", model.Config{}, verbs.QPTypeRC, []byte{opFetchAdd}},
		{"ib_atomic_bw -n 20 -A CMP_AND_SWAP", model.Config{}, verbs.QPTypeRC, []byte{opCompare}},
		{"ibv_ud_pingpong -n 20", model.Config{}, verbs.QPTypeUD, []byte{opSend}},
		{"ibv_ud_pingpong -n 20 -g 3", ethernet, verbs.QPTypeUD, []byte{opSend}},
		{"ibv_ud_pingpong -n 20 -g 0 -l 3", ethernet, verbs.QPTypeUD, []byte{opSend}},
		{"ibv_xsrq_pingpong -n 20", model.Config{}, verbs.QPTypeXRCInitiator, []byte{opSend}},
		{"ibv_xsrq_pingpong -n 20 -g 3", ethernet, verbs.QPTypeXRCInitiator, []byte{opSend}},
		{"ib_send_bw -n 20 -c XRC", model.Config{}, verbs.QPTypeXRCInitiator, []byte{opSend}},
		{"ib_write_lat -n 20 -c XRC -I 200 -s 190", model.Config{}, verbs.QPTypeXRCInitiator, []byte{opWrite}},
		{"ib_read_bw -n 20 -c XRC", model.Config{}, verbs.QPTypeXRCInitiator, []byte{opRead}},
		{"ib_atomic_bw -n 20 -c XRC -A FETCH_AND_ADD", model.Config{}, verbs.QPTypeXRCInitiator, []byte{opFetchAdd}},
		{"ib_atomic_bw -n 20 -c XRC -A CMP_AND_SWAP", model.Config{}, verbs.QPTypeXRCInitiator, []byte{opCompare}},
		{"rstream -S 65536 -C 20", ethernet, verbs.QPTypeRC, []byte{opWriteImm}},
		{"udaddy -c 1 -C 20", ethernet, verbs.QPTypeUD, []byte{opSendImm}},
	} {
		t.Run(c.program, func(t *testing.T) {
			trial := modeltest.NewTrial(t)
			trial.Device = c.config
			var mu sync.Mutex
			var wqes [][]byte
			trial.Fabric.WQE = func(wqe []byte) {
				mu.Lock()
				defer mu.Unlock()
				wqes = append(wqes, bytes.Clone(wqe))
			}
			switch args := strings.Fields(c.program); args[0] {
			case "rstream", "udaddy":
				trial.Connected(t, c.program, c.program+" -s 127.0.0.1")
			default:
				trial.Pair(t, args...)
			}
			mu.Lock()
			defer mu.Unlock()
			seen := map[byte]bool{}
			for _, wqe := range wqes {
				ours := rewritten(t, wqe, c.typ)
				require.Equal(t, fmt.Sprintf("%x", maskInline(wqe, c.typ)), fmt.Sprintf("%x", maskInline(ours, c.typ)))
				seen[wqe[3]] = true
			}
			for _, opcode := range c.opcodes {
				require.True(t, seen[opcode], "opcode %#x among %d WQEs", opcode, len(wqes))
			}
		})
	}
}

// rewritten reads a WQE as a request and returns what the driver writes for it.
func rewritten(t *testing.T, wqe []byte, typ verbs.QPType) []byte {
	t.Helper()
	word, flags := be.Uint32(wqe), wqe[ctrlFlags]
	wr := verbs.SendWR{Opcode: map[byte]verbs.Opcode{opSend: verbs.OpSend, opSendImm: verbs.OpSendWithImm, opWrite: verbs.OpWrite,
		opWriteImm: verbs.OpWriteWithImm, opRead: verbs.OpRead, opCompare: verbs.OpCompareSwap, opFetchAdd: verbs.OpFetchAdd}[byte(word)]}
	if wr.Opcode == verbs.OpSendWithImm || wr.Opcode == verbs.OpWriteWithImm {
		wr.Imm = be.Uint32(wqe[ctrlImm:])
	}
	for bit, flag := range map[byte]verbs.SendFlags{flagSignaled: verbs.SendSignaled, flagSolicited: verbs.SendSolicited, flagFence: verbs.SendFence} {
		if flags&bit == bit {
			wr.Flags |= flag
		}
	}
	b := wqe[segmentSize:]
	datagrams := typ == verbs.QPTypeUD
	if datagrams {
		b = b[datagramSize:]
	}
	if typ == verbs.QPTypeXRCInitiator {
		wr.RemoteSRQ = be.Uint32(b)
		b = b[segmentSize:]
	}
	if !datagrams && wr.Opcode != verbs.OpSend && wr.Opcode != verbs.OpSendWithImm {
		wr.RemoteAddr, wr.RKey = be.Uint64(b), be.Uint32(b[8:])
		b = b[segmentSize:]
	}
	switch wr.Opcode {
	case verbs.OpCompareSwap:
		wr.Swap, wr.CompareAdd = be.Uint64(b), be.Uint64(b[8:])
		b = b[segmentSize:]
	case verbs.OpFetchAdd:
		wr.CompareAdd = be.Uint64(b)
		b = b[segmentSize:]
	}
	if len(b) > 0 && be.Uint32(b)&inlineFlag != 0 {
		wr.Flags |= verbs.SendInline
		wr.Inline = [][]byte{b[4:][:be.Uint32(b)&^inlineFlag]}
		b = nil
	}
	for ; len(b) > 0; b = b[segmentSize:] {
		wr.SGL = append(wr.SGL, verbs.SGE{Length: be.Uint32(b), LKey: be.Uint32(b[4:]), Addr: be.Uint64(b[8:])})
	}
	q := &qp{typ: verbs.QPTypeRC, operations: &reliable, number: be.Uint32(wqe[4:]) >> 8}
	if typ == verbs.QPTypeXRCInitiator {
		q.typ, q.operations = typ, &extended
	}
	ours := make([]byte, 8*blockSize)
	w, err := q.encode(ours, word>>8&0xffff, &wr, wr.Flags)
	require.NoError(t, err)
	ours = ours[:w.size]
	require.Equal(t, w.first, be.Uint64(ours))
	if !datagrams {
		return ours
	}
	// The address stands behind the control segment, which has the number of all segments.
	be.PutUint32(ours[4:], be.Uint32(ours[4:])+datagramSize/segmentSize)
	return bytes.Join([][]byte{ours[:segmentSize], readdressed(t, wqe[segmentSize:][:datagramSize]), ours[segmentSize:]}, nil)
}

// readdressed reads the segment of an address, and returns what the driver writes for it.
func readdressed(t *testing.T, segment []byte) []byte {
	t.Helper()
	p := segment[pathOffset:]
	av := verbs.AddressVector{Port: 1}
	mac := [6]byte(p[8:14])
	if ethernet := mac != [6]byte{}; ethernet {
		av.SL = p[0] >> 1 & 7
	} else {
		av.SL, av.SrcPathBits, av.DLID = p[0]&15, p[1]&0x7f, be.Uint16(p[2:])
	}
	word := be.Uint32(p[16:])
	if av.IsGlobal = mac != [6]byte{} || word>>30 != 0; av.IsGlobal {
		av.TrafficClass, av.HopLimit = p[14], p[15]
		av.SGIDIndex, av.FlowLabel = uint8(word>>20), word&0xfffff
		copy(av.DGID[:], p[20:])
	}
	c, _ := newContext(t)
	port := be.Uint16(p[2:])
	made, err := c.CreateAH(&av, func(u driver.Udata) error {
		if mac != [6]byte{} {
			*abi.ViewAt[createAHOut](u.Out, 0) = createAHOut{responseLength: 10, dmac: mac}
		}
		return nil
	})
	require.NoError(t, err)
	require.IsType(t, (*path)(nil), made)
	b := make([]byte, datagramSize)
	be.PutUint32(b, be.Uint32(segment))
	be.PutUint32(b[8:], be.Uint32(segment[8:])&0xffffff|extendedPath)
	copy(b[pathOffset:], made.(*path)[:])
	if mac != [6]byte{} && av.FlowLabel == 0 {
		require.True(t, port == 0 || port >= 0xc000, "%#x", port)
		be.PutUint16(b[pathOffset+2:], port)
	}
	return b
}

// maskInline returns a WQE with zeros behind its inline data.
func maskInline(wqe []byte, typ verbs.QPType) []byte {
	at := segmentSize
	switch typ {
	case verbs.QPTypeUD:
		at += datagramSize
	case verbs.QPTypeXRCInitiator:
		at += segmentSize
	}
	if op := wqe[3]; typ != verbs.QPTypeUD && (op == opWrite || op == opWriteImm) {
		at += segmentSize
	}
	wqe = bytes.Clone(wqe)
	if at < len(wqe) && be.Uint32(wqe[at:])&inlineFlag != 0 {
		clear(wqe[at+4+int(be.Uint32(wqe[at:])&^inlineFlag):])
	}
	return wqe
}
