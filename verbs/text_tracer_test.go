package verbs

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheTextTracerTellsWhatWasPostedAndPolled(t *testing.T) {
	var out strings.Builder
	tracer := NewTextTracer("soft0", &out)
	ctx := &Context{attr: DeviceAttr{DeviceInfo: DeviceInfo{Name: "soft0"}}}
	qp := &QP{ctx: ctx, num: 0x1a2b, drv: queueOf48{}}
	tracer.postedSends(qp, []SendWR{{
		ID: 7, Opcode: OpWriteWithImm, Imm: 5, Flags: SendSignaled | SendSolicited, SGL: []SGE{{Length: 4000}, {Length: 96}}, RemoteAddr: 0x1000, RKey: 0x11,
	}, {ID: 8, Opcode: OpLocalInv, InvalidateRKey: 0x22}}, 2)
	qp.drv = &countingQP{} // which does not tell
	tracer.postedSends(qp, []SendWR{
		{ID: 9, Opcode: OpSend, Flags: SendInline, Inline: [][]byte{{1, 2}}, Datagram: &Datagram{QPN: 3}},
		{ID: 11, Opcode: OpSend, RemoteSRQ: 0x51}, {ID: 10},
	}, 2)
	tracer.postedRecvs(ctx, 0, []RecvWR{{ID: 1, SGL: []SGE{{Length: 64}}}})
	tracer.polled(ctx, []WC{
		{ID: 7, QPN: 0x1a2b, ByteLen: 4096},
		{ID: 1, QPN: 0x1a2c, Status: WCRemAccessErr, VendorErr: 6, SrcQPN: 2, Flags: WCWithImm, Imm: 5},
	})
	var lines []string
	for line := range strings.Lines(out.String()) {
		_, rest, ok := strings.Cut(line, " ")
		require.True(t, ok)
		lines = append(lines, rest)
	}
	require.Equal(t, []string{
		"soft0 QP 0x1a2b post WRITE_WITH_IMM 4096 bytes in a WQE of 48 id 7 to 0x1000 key 0x11 imm 0x5 signaled solicited\n",
		"soft0 QP 0x1a2b post LOCAL_INV 0 bytes in a WQE of 48 id 8 key 0x22\n",
		"soft0 QP 0x1a2b post SEND 2 bytes id 9 to QP 0x3 inline\n",
		"soft0 QP 0x1a2b post SEND 0 bytes id 11 SRQ 0x51\n",
		"soft0 SRQ receive 64 bytes id 1\n",
		"soft0 QP 0x1a2b done id 7 SUCCESS 4096 bytes\n",
		"soft0 QP 0x1a2c done id 1 REM_ACCESS 0 bytes imm 0x5 from QP 0x2 vendor error 0x6\n",
	}, lines)
}

// queueOf48 is a QP whose requests have 48 bytes.
type queueOf48 struct{ QPDriver }

func (queueOf48) WQEBytes(*SendWR) int { return 48 }
