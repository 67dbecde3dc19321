package verbs_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/skip"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// TestWiresharkReadsThePackets posts requests of each kind, and has tshark say what the
// packets are.
func TestWiresharkReadsThePackets(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	skip.Because(t, err)
	b := newBench(t)
	qp, peer := b.connected(t)
	const all = verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic | verbs.AccessFlushGlobal
	mr, err := b.pd.AllocMR(1<<20, all, verbs.MROptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, mr.Close()) })
	var file bytes.Buffer
	b.dev.SetTracer(verbs.NewPacketTracer(&file))
	other, err := b.pd.AllocMR(1, all, verbs.MROptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	_, err = peer.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{mr.SGE(0, 100)}}, {}, {}, {SGL: []verbs.SGE{mr.SGE(8000, 5000)}}, {}})
	require.NoError(t, err)

	at, key := mr.Addr()+4096, mr.RKey()
	for _, wr := range []verbs.SendWR{
		{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{[]byte("hello")}},
		{Opcode: verbs.OpWrite, SGL: []verbs.SGE{mr.SGE(0, 10_000)}, RemoteAddr: at, RKey: key},
		{Opcode: verbs.OpWriteWithImm, Imm: 0x01020304, RemoteAddr: at, RKey: key},
		{Opcode: verbs.OpRead, SGL: []verbs.SGE{mr.SGE(0, 9000)}, RemoteAddr: at, RKey: key},
		{Opcode: verbs.OpCompareSwap, SGL: []verbs.SGE{mr.SGE(0, 8)}, RemoteAddr: at, RKey: key, CompareAdd: 5, Swap: 6},
		{Opcode: verbs.OpSendWithImm, Imm: 7},
		{Opcode: verbs.OpFetchAdd, SGL: []verbs.SGE{mr.SGE(0, 8)}, RemoteAddr: at, RKey: key, CompareAdd: 9},
		{Opcode: verbs.OpFlush, RemoteAddr: at, RKey: key, Flush: &verbs.Flush{Type: verbs.FlushGlobal, Length: 77}},
		{Opcode: verbs.OpAtomicWrite, Flags: verbs.SendInline, Inline: [][]byte{make([]byte, 8)}, RemoteAddr: at, RKey: key},
		{Opcode: verbs.OpSendWithInv, SGL: []verbs.SGE{mr.SGE(0, 5000)}, InvalidateRKey: key},
		{Opcode: verbs.OpSendWithInv, InvalidateRKey: other.RKey()},
	} {
		wr.Flags |= verbs.SendSignaled
		n, err := qp.PostSend([]verbs.SendWR{wr})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		completions := 1
		switch wr.Opcode {
		case verbs.OpSend, verbs.OpSendWithImm, verbs.OpSendWithInv, verbs.OpWriteWithImm:
			completions = 2 // the peer's too
		}
		for _, wc := range b.poll(t, completions) {
			require.NoError(t, wc.Err(), "%v", wr.Opcode)
		}
	}
	ud := datagramQP(t, b)
	gids, err := b.dev.QueryGIDs(1)
	require.NoError(t, err)
	ah, err := b.pd.CreateAH(verbs.AddressVector{DGID: gids[0].GID, IsGlobal: true, Port: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ah.Close()) })
	_, err = ud.PostSend([]verbs.SendWR{{
		Opcode: verbs.OpSend, SGL: []verbs.SGE{mr.SGE(0, 64)}, Datagram: &verbs.Datagram{AH: ah, QPN: 0x1234, QKey: 9},
	}})
	require.NoError(t, err)
	uc := unreliableQP(t, b, gids[0].GID)
	for _, wr := range []verbs.SendWR{
		{Opcode: verbs.OpSend, SGL: []verbs.SGE{mr.SGE(0, 5000)}},
		{Opcode: verbs.OpWriteWithImm, Imm: 8, RemoteAddr: at, RKey: key, SGL: []verbs.SGE{mr.SGE(0, 2)}},
	} {
		_, err = uc.PostSend([]verbs.SendWR{wr})
		require.NoError(t, err)
	}
	b.dev.SetTracer(nil)

	name := filepath.Join(t.TempDir(), "packets.pcapng")
	require.NoError(t, os.WriteFile(name, file.Bytes(), 0o600))
	command := exec.CommandContext(t.Context(), tshark, "-n", "-r", name, "-T", "fields", "-E", "separator=|", "-E", "occurrence=f")
	for _, field := range []string{"frame.len", "udp.dstport", "infiniband.bth.opcode", "infiniband.bth.padcnt",
		"infiniband.bth.psn", "infiniband.reth.dmalen", "infiniband.immdt", "infiniband.atomiceth.cmpdt", "infiniband.atomiceth.swapdt", "infiniband.ieth", "infiniband.deth.q_key"} {
		command.Args = append(command.Args, "-e", field)
	}
	command.Env = append(os.Environ(), "HOME="+t.TempDir()) // and not what the user has set
	out, err := command.Output()
	require.NoError(t, err)
	// IP and UDP have 48 bytes, the BTH 12, the ICRC 4.
	// Opcodes 28 and 29, of release 1.6 of the specification, are unknown to Wireshark 4.0: it
	// shows no more of them.
	keyOf := func(mr *verbs.MR) string { return fmt.Sprintf("%08x", mr.RKey()) }
	require.Equal(t, strings.Join([]string{
		"72|4791|4|3|0||||||",                       // SEND only
		"4176|4791|6|0|1|10000|||||",                // WRITE first
		"4160|4791|7|0|2||||||",                     // middle
		"1872|4791|8|0|3||||||",                     // last
		"84|4791|11|0|4|0|01020304||||",             // WRITE only with immediate
		"80|4791|12|0|5|9000|||||",                  // READ, which is answered by three
		"92|4791|19|0|8|||5|6||",                    // CMP_AND_SWP
		"68|4791|5|0|9||00000007||||",               // SEND only with immediate
		"92|4791|20|0|10|||0|9||",                   // FETCH_AND_ADD
		"84|4791|28|0|11||||||",                     // FLUSH
		"88|4791|29|0|12||||||",                     // ATOMIC_WRITE
		"4160|4791|0|0|13||||||",                    // SEND first
		"972|4791|22|0|14|||||" + keyOf(mr) + "|",   // last with invalidate
		"68|4791|23|0|15|||||" + keyOf(other) + "|", // only with invalidate
		"136|4791|100|0|77||||||0x0000000000000009", // SEND only of a UD QP
		"4160|4791|32|0|99||||||",                   // SEND first of a UC QP
		"968|4791|34|0|100||||||",                   // last
		"88|4791|43|2|101|2|00000008||||",           // WRITE only with immediate
	}, "\n")+"\n", string(out))
}

// Packet numbers go on when a QP gets other attributes, and begin anew with SQPSN; what the
// tracer holds does not grow with a request; and it forgets QPs that are closed.
func TestPacketNumbersAndMemoryOfTheTracer(t *testing.T) {
	b := newBench(t)
	qp, _ := b.connected(t)
	const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	mr, err := b.pd.AllocMR(16<<20, access, verbs.MROptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, mr.Close()) })
	var file countingWriter
	tracer := verbs.NewPacketTracer(&file)
	b.dev.SetTracer(tracer)
	write := func(qp *verbs.QP, length int) {
		_, err := qp.PostSend([]verbs.SendWR{{
			Opcode: verbs.OpWrite, SGL: []verbs.SGE{mr.SGE(0, length)}, RemoteAddr: mr.Addr(), RKey: mr.RKey(), Flags: verbs.SendSignaled,
		}})
		require.NoError(t, err)
		b.poll(t, 1)
	}
	attr, err := qp.Query()
	require.NoError(t, err)
	first := attr.SQPSN
	write(qp, 1)
	write(qp, 1)
	require.NoError(t, qp.Modify(verbs.QPAttr{Access: access}, verbs.QPAttrAccess))
	write(qp, 1)
	require.Equal(t, []uint32{first, first + 1, first + 2}, packetNumbers(t, file.Bytes()))

	file.Reset()
	file.most = 0
	write(qp, 16<<20)
	require.Len(t, packetNumbers(t, file.Bytes()), 16<<20/attr.PathMTU.Bytes())
	require.Less(t, file.most, 128<<10)

	require.Equal(t, 1, tracer.Flows())
	require.NoError(t, qp.Close())
	require.Zero(t, tracer.Flows())
	b.dev.SetTracer(nil)
}

// countingWriter keeps what it gets, and how much of that came at once.
type countingWriter struct {
	bytes.Buffer
	most int
}

func (w *countingWriter) Write(b []byte) (int, error) {
	w.most = max(w.most, len(b))
	return w.Buffer.Write(b)
}

// packetNumbers returns those of packets over IPv6 in the blocks of a pcapng file.
func packetNumbers(t *testing.T, file []byte) (psns []uint32) {
	le := binary.LittleEndian
	for len(file) > 0 {
		length := int(le.Uint32(file[4:]))
		if le.Uint32(file) == 6 {
			const packet, ipv6, udp, psn = 28, 40, 8, 8
			require.EqualValues(t, 0x60, file[packet]&0xf0)
			psns = append(psns, binary.BigEndian.Uint32(file[packet+ipv6+udp+psn:]))
		}
		file = file[length:]
	}
	return psns
}

// unreliableQP makes a UC QP in RTS towards one that does not exist.
func unreliableQP(t *testing.T, b *bench, gid verbs.GID) *verbs.QP {
	t.Helper()
	attr := b.attr()
	attr.Type = verbs.QPTypeUC
	qp, err := b.pd.CreateQP(attr)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, qp.Close()) })
	require.NoError(t, toInit(qp))
	require.NoError(t, qp.Modify(verbs.QPAttr{
		State: verbs.QPStateRTR, AV: verbs.AddressVector{DGID: gid, IsGlobal: true, Port: 1}, PathMTU: verbs.MTU4096, DestQPN: 0xffff,
	}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN))
	require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS, SQPSN: 99}, verbs.QPAttrState|verbs.QPAttrSQPSN))
	return qp
}

// datagramQP makes a UD QP in RTS.
func datagramQP(t *testing.T, b *bench) *verbs.QP {
	t.Helper()
	attr := b.attr()
	attr.Type = verbs.QPTypeUD
	qp, err := b.pd.CreateQP(attr)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, qp.Close()) })
	require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrQKey))
	require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPStateRTR}, verbs.QPAttrState))
	require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS, SQPSN: 77}, verbs.QPAttrState|verbs.QPAttrSQPSN))
	return qp
}
