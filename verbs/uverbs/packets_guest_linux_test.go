package uverbs_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/pingpong"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestPacketsOfTheTracerAreThoseOnTheWire posts to a host that does not exist, and compares what
// the packet tracer writes with what rxe sends: addresses, lengths, and all headers of InfiniBand.
func TestPacketsOfTheTracerAreThoseOnTheWire(t *testing.T) {
	requireDevice(t, "rxe0")
	// dummy0 asks nobody for addresses, and what goes to its own does not leave the host.
	command := exec.Command("ip", "neigh", "replace", "10.0.0.77", "lladdr", "02:00:00:00:00:77", "dev", "dummy0", "nud", "permanent")
	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for name, typ := range map[string]verbs.QPType{"RC": verbs.QPTypeRC, "UC": verbs.QPTypeUC, "UD": verbs.QPTypeUD} {
		t.Run(name, func(t *testing.T) {
			ctx := open(t, "rxe0")
			wire := capture(t, "dummy0")
			var file bytes.Buffer
			ctx.SetTracer(verbs.NewPacketTracer(&file))
			qp, requests := toNobody(t, ctx, typ)
			for i, wr := range requests {
				_, err := qp.PostSend([]verbs.SendWR{wr})
				require.NoError(t, err)
				if i == 0 {
					requireSamePackets(t, 1, &file, wire)
					ctx.SetTracer(nil)
					_, err := qp.PostSend([]verbs.SendWR{wr})
					require.NoError(t, err)
					wire.next(t)
					// rxe may count a packet after it is on its way, and a
					// tracer that comes asks for the count.
					hang.Eventually(t, "the number after the two packets", func() bool {
						attr, err := qp.Query()
						require.NoError(t, err)
						return attr.SQPSN == (firstPSN+2)&0xffffff
					})
					file.Reset()
					ctx.SetTracer(verbs.NewPacketTracer(&file)) // when there were packets
				}
			}
			requireSamePackets(t, len(requests)-1, &file, wire)
		})
	}
}

// firstPSN is of the first packet. The numbers go round, at 24 bits.
const firstPSN = 0xfffffe

// toNobody makes a QP whose packets nobody answers, and requests for it.
func toNobody(t *testing.T, ctx *verbs.Context, typ verbs.QPType) (*verbs.QP, []verbs.SendWR) {
	t.Helper()
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	cq, err := ctx.CreateCQ(verbs.CQAttr{CQE: 64}, nil)
	require.NoError(t, err)
	qp, err := pd.CreateQP(verbs.QPInitAttr{Type: typ, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 32, MaxSendSGE: 1, MaxInline: 64}})
	require.NoError(t, err)
	mr, err := pd.AllocMR(64<<10, verbs.AccessLocalWrite, verbs.MROptions{})
	require.NoError(t, err)
	path, err := pingpong.PathOf(ctx)
	require.NoError(t, err)
	av := verbs.AddressVector{
		IsGlobal: true, DGID: netip.MustParseAddr("::ffff:10.0.0.77").As16(), SGIDIndex: uint8(path.GID.Index), HopLimit: 9, TrafficClass: 0x28, Port: 1,
	}
	attr := verbs.QPAttr{
		State: verbs.QPStateInit, Port: 1, QKey: 1, AV: av, PathMTU: verbs.MTU1024, DestQPN: 0xabcdef, MinRNRTimer: 1, MaxDestRdAtomic: 16,
		MaxRdAtomic: 16, RetryCount: 7, RNRRetry: 7, SQPSN: firstPSN,
	}
	mask := verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort
	toRTR, toRTS := verbs.QPAttrState, verbs.QPAttrState|verbs.QPAttrSQPSN
	switch typ {
	case verbs.QPTypeUD:
		mask |= verbs.QPAttrQKey
	case verbs.QPTypeRC:
		toRTR |= verbs.QPAttrMaxDestRdAtomic | verbs.QPAttrMinRNRTimer
		// nothing is repeated
		toRTS |= verbs.QPAttrTimeout | verbs.QPAttrRetryCount | verbs.QPAttrRNRRetry | verbs.QPAttrMaxRdAtomic
	}
	if typ != verbs.QPTypeUD {
		mask |= verbs.QPAttrAccess
		toRTR |= verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN
	}
	require.NoError(t, qp.Modify(attr, mask))
	attr.State = verbs.QPStateRTR
	require.NoError(t, qp.Modify(attr, toRTR))
	attr.State = verbs.QPStateRTS
	require.NoError(t, qp.Modify(attr, toRTS))

	const addr, key = 0x0102030405060708, 0x11223344
	word := []verbs.SGE{mr.SGE(0, 8)}
	requests := []verbs.SendWR{
		{Opcode: verbs.OpSend, SGL: []verbs.SGE{mr.SGE(0, 5)}},
		{Opcode: verbs.OpSendWithImm, Imm: 0xcafe0001, Flags: verbs.SendSolicited, SGL: []verbs.SGE{mr.SGE(0, 1000)}},
		{Opcode: verbs.OpSend},
	}
	if typ == verbs.QPTypeUD {
		ah, err := pd.CreateAH(av)
		require.NoError(t, err)
		for i := range requests {
			requests[i].Datagram = &verbs.Datagram{AH: ah, QPN: 0x123450 + uint32(i), QKey: 0x77}
		}
		return qp, requests
	}
	requests = append(requests,
		verbs.SendWR{Opcode: verbs.OpSendWithImm, Imm: 5, Flags: verbs.SendSolicited, SGL: []verbs.SGE{mr.SGE(0, 2050)}},
		verbs.SendWR{Opcode: verbs.OpWrite, RemoteAddr: addr, RKey: key, SGL: []verbs.SGE{mr.SGE(0, 5001)}},
		verbs.SendWR{Opcode: verbs.OpWriteWithImm, Imm: 7, RemoteAddr: addr, RKey: key, SGL: []verbs.SGE{mr.SGE(0, 3)}},
		verbs.SendWR{Opcode: verbs.OpWriteWithImm, Imm: 8, RemoteAddr: addr, RKey: key, SGL: []verbs.SGE{mr.SGE(0, 2048)}},
	)
	if typ == verbs.QPTypeUC {
		return qp, requests
	}
	requests = append(requests,
		verbs.SendWR{Opcode: verbs.OpSendWithInv, InvalidateRKey: key, SGL: word},
		verbs.SendWR{Opcode: verbs.OpSendWithInv, InvalidateRKey: key, SGL: []verbs.SGE{mr.SGE(0, 1500)}},
		verbs.SendWR{Opcode: verbs.OpFetchAdd, RemoteAddr: addr, RKey: key, CompareAdd: 11, SGL: word},
		verbs.SendWR{Opcode: verbs.OpCompareSwap, RemoteAddr: addr, RKey: key, CompareAdd: 12, Swap: 13, SGL: word},
		verbs.SendWR{Opcode: verbs.OpRead, RemoteAddr: addr, RKey: key, SGL: []verbs.SGE{mr.SGE(0, 3000)}},
		verbs.SendWR{Opcode: verbs.OpSend},
	)
	if caps := ctx.Attr().Caps; caps.Has(verbs.CapFlush | verbs.CapAtomicWrite) {
		requests = append(requests,
			verbs.SendWR{Opcode: verbs.OpFlush, RemoteAddr: addr, RKey: key, Flush: &verbs.Flush{Type: verbs.FlushGlobal, Length: 100}},
			verbs.SendWR{Opcode: verbs.OpFlush, RemoteAddr: addr, RKey: key, Flush: &verbs.Flush{Type: verbs.FlushGlobal | verbs.FlushPersistent, Level: verbs.FlushMR}},
			verbs.SendWR{Opcode: verbs.OpAtomicWrite, Flags: verbs.SendInline, Inline: [][]byte{make([]byte, 8)}, RemoteAddr: addr, RKey: key},
			verbs.SendWR{Opcode: verbs.OpSend},
		)
	}
	return qp, requests
}

// packets is a socket that sees what leaves an interface.
type packets struct{ fd int }

func capture(t *testing.T, name string) packets {
	t.Helper()
	all := int(uint16(unix.ETH_P_ALL)>>8 | uint16(unix.ETH_P_ALL)<<8)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, all)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	netdev, err := net.InterfaceByName(name)
	require.NoError(t, err)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: netdev.Index}))
	require.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}))
	return packets{fd}
}

// next returns the next packet of RoCE, by its IP header.
func (p packets) next(t *testing.T) []byte {
	t.Helper()
	buf := make([]byte, 1<<16)
	for deadline := time.Now().Add(time.Minute); ; {
		n, _, err := unix.Recvfrom(p.fd, buf, 0)
		require.NoError(t, err)
		if b := buf[:n]; n > 28 && b[0] == 0x45 && b[9] == 17 && binary.BigEndian.Uint16(b[22:]) == 4791 {
			return b
		}
		require.True(t, time.Now().Before(deadline), "nothing but other packets")
	}
}

// requireSamePackets takes as many packets from the wire as the tracer has written, of so
// many requests at least.
func requireSamePackets(t *testing.T, requests int, file *bytes.Buffer, wire packets) {
	t.Helper()
	var traced, sent []string
	for b := file.Bytes(); len(b) > 0; b = b[binary.LittleEndian.Uint32(b[4:]):] {
		if binary.LittleEndian.Uint32(b) != 6 {
			continue
		}
		captured := b[28:][:binary.LittleEndian.Uint32(b[20:])]
		traced = append(traced, described(captured, len(captured)))
		sent = append(sent, described(wire.next(t), len(captured)))
	}
	require.GreaterOrEqual(t, len(traced), requests)
	require.Equal(t, strings.Join(traced, "\n"), strings.Join(sent, "\n"), "traced and sent")
}

// described says what is in the headers of a packet, of so many bytes. Whether an acknowledgement
// is asked for, how many hops are left, and the identification and the checksums of IP and UDP, are
// the affair of device and kernel.
func described(b []byte, headers int) string {
	bth := bytes.Clone(b[28:headers])
	bth[8] &^= 0x80
	return fmt.Sprintf("%v to %v, tos %#x, %d bytes: opcode %#x %s", net.IP(b[12:16]), net.IP(b[16:20]), b[1],
		binary.BigEndian.Uint16(b[2:]), bth[0], hex.EncodeToString(bth))
}
