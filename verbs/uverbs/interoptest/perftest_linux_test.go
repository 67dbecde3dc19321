package interoptest

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/pingpong"
	"github.com/stretchr/testify/require"
)

// What perftest's programs allow, and what not (6.06): the QP and the memory of
// each grant the peer only the operation that the program measures. So what we
// WRITE cannot be read back by READ, and neither can a word that we count in.
// -R changes nothing: there the connection manager sets up the QP, but the
// memory is registered as before. The programs never look at their memory
// either, other than ib_write_lat. So the tests look into the memory of the C
// program as a debugger does (/proc/PID/mem). A word can also be read through
// the device, by FETCH_ADD of 0.
//
// CMP_AND_SWP of a C client swaps in a zero, but what it compares with is
// never set: it is what malloc has left there. Only what it fetches can be
// foretold.

// perftestProgram is a C program that runs.
type perftestProgram struct {
	wait    func() (string, error)
	mem     *os.File
	latency bool // what it measures, of which it is told nothing
}

// spokenPerftest is the program that has spoken with us. One that has only just
// been started could still have the memory of this process.
func spokenPerftest(t *testing.T, name string, pid int, wait func() (string, error)) *perftestProgram {
	t.Helper()
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { mem.Close() })
	return &perftestProgram{wait, mem, strings.HasSuffix(name, "_lat")}
}

func (c *perftestProgram) peek(t *testing.T, addr uint64, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	_, err := c.mem.ReadAt(b, int64(addr))
	require.NoError(t, err)
	return b
}

func (c *perftestProgram) word(t *testing.T, addr uint64) uint64 {
	t.Helper()
	return binary.NativeEndian.Uint64(c.peek(t, addr, 8))
}

func (c *perftestProgram) poke(t *testing.T, addr uint64, b []byte) {
	t.Helper()
	_, err := c.mem.WriteAt(b, int64(addr))
	require.NoError(t, err)
}

// perftest is our side.
type perftest struct {
	perftestConn
	service verbs.QPType
	ctx     *verbs.Context
	cq      *verbs.CQ // of what we send
	recvCQ  *verbs.CQ
	qp      *verbs.QP
	peer    *verbs.Datagram // UD
	mr      *verbs.MR
	path    pingpong.Path
	mtu     verbs.MTU
	mine    perftestKeys
	theirs  perftestKeys
}

const (
	perftestMemory   = 1 << 17
	perftestOutReads = 16
	perftestReceives = 100
)

// newPerftest makes what needs no peer, for RC. access is what the peer may do.
func newPerftest(t *testing.T, access verbs.Access) *perftest {
	t.Helper()
	return newPerftestOf(t, verbs.QPTypeRC, access)
}

func newPerftestOf(t *testing.T, service verbs.QPType, access verbs.Access) *perftest {
	t.Helper()
	ctx, err := verbs.Open(cDevice(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ctx.Close()) })
	p := &perftest{service: service, ctx: ctx}
	port, err := p.ctx.QueryPort(1)
	require.NoError(t, err)
	p.mtu = port.ActiveMTU
	p.path, err = pingpong.PathOf(p.ctx)
	require.NoError(t, err)
	pd, err := p.ctx.AllocPD()
	require.NoError(t, err)
	p.mr, err = pd.AllocMR(perftestMemory, access|verbs.AccessLocalWrite, verbs.MROptions{})
	require.NoError(t, err)
	p.cq, err = p.ctx.CreateCQ(verbs.CQAttr{CQE: 16}, nil)
	require.NoError(t, err)
	p.recvCQ, err = p.ctx.CreateCQ(verbs.CQAttr{CQE: perftestReceives}, nil)
	require.NoError(t, err)
	p.qp, err = pd.CreateQP(verbs.QPInitAttr{
		Type: service, SendCQ: p.cq, RecvCQ: p.recvCQ,
		Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: perftestReceives, MaxSendSGE: 3, MaxRecvSGE: 1, MaxInline: 64},
	})
	require.NoError(t, err)
	mask := verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess
	if service == verbs.QPTypeUD {
		mask = verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrQKey
	}
	require.NoError(t, p.qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1, Access: access, QKey: pingpong.QKey}, mask))
	p.mine = perftestKeys{
		LID: p.path.LID, OutReads: perftestOutReads, QPN: p.qp.Num(), PSN: 0xabcdef, RKey: p.mr.RKey(), Addr: p.mr.Addr(),
		GID: p.path.GID.GID,
	}
	return p
}

func (p *perftest) args(port string, more ...string) []string {
	return append(append(gidFlag(p.path, "-x"), "-d", p.ctx.Name(), "-F", "-p", port), more...)
}

// dial starts a C server and gets to where the client begins. rounds is how
// often the program sends its first keys.
func (p *perftest) dial(t *testing.T, rounds int, name string, args ...string) *perftestProgram {
	t.Helper()
	number, port := freePort(t)
	pid, wait := process(t, name, p.args(port, args...)...)
	waitForListener(t, number)
	conn, err := net.DialTimeout("tcp", "127.0.0.1:"+port, 10*time.Second)
	require.NoError(t, err)
	p.meet(t, perftestConn{conn, true}, rounds)
	return spokenPerftest(t, name, pid, wait)
}

// serve starts a C client and gets to where it begins.
func (p *perftest) serve(t *testing.T, rounds int, name string, args ...string) *perftestProgram {
	t.Helper()
	ln, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer ln.Close()
	require.NoError(t, ln.SetDeadline(time.Now().Add(20*time.Second)))
	port := strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)
	pid, wait := process(t, name, append(p.args(port, args...), "127.0.0.1")...)
	conn, err := ln.Accept() // ends with the client or the deadline
	require.NoError(t, err)
	p.meet(t, perftestConn{conn, false}, rounds)
	return spokenPerftest(t, name, pid, wait)
}

func (p *perftest) meet(t *testing.T, conn perftestConn, rounds int) {
	t.Helper()
	p.perftestConn = conn
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	mtu, err := p.hello(p.mtu)
	require.NoError(t, err)
	for range rounds {
		p.theirs, err = p.keys(p.mine)
		require.NoError(t, err)
	}
	av := p.path.To(p.theirs.LID, p.theirs.GID)
	require.NoError(t, pingpong.ToRTS(p.qp, p.service,
		verbs.QPAttr{PathMTU: mtu, DestQPN: p.theirs.QPN, RQPSN: p.theirs.PSN, MaxDestRdAtomic: perftestOutReads, MinRNRTimer: 12, AV: av},
		verbs.QPAttr{
			Timeout: 14, RetryCount: 7, RNRRetry: 7, SQPSN: p.mine.PSN,
			MaxRdAtomic: uint8(min(p.theirs.OutReads, perftestOutReads)),
		}))
	if p.service == verbs.QPTypeUD {
		ah, err := p.qp.PD().CreateAH(av)
		require.NoError(t, err)
		p.peer = &verbs.Datagram{AH: ah, QPN: p.theirs.QPN, QKey: pingpong.QKey}
	}
	p.await(t) // which the programs print
	p.await(t) // both are ready
}

// await goes on when the peer has got as far in the conversation.
func (p *perftest) await(t *testing.T) {
	t.Helper()
	theirs, err := p.keys(p.mine)
	require.NoError(t, err)
	require.Equal(t, p.theirs, theirs, "the same keys each time")
}

// leave ends the conversation after the reports, and sees the C program off.
func (p *perftest) leave(t *testing.T, c *perftestProgram) (output string) {
	t.Helper()
	p.await(t)
	require.NoError(t, p.done())
	output, err := c.wait()
	require.NoError(t, err)
	return output
}

// endAsClient says that we are done, and, to a program of bandwidth, what we pretend to have measured.
func (p *perftest) endAsClient(t *testing.T, c *perftestProgram) {
	t.Helper()
	if c.latency {
		p.leave(t, c)
		return
	}
	p.await(t)
	ours := perftestReport{Size: 321, Iterations: 654, Peak: 98.75, Average: 76.5, Rate: 1.25}
	_, err := p.report(ours)
	require.NoError(t, err)
	require.Regexp(t, ours.line(), p.leave(t, c), "it prints our report")
}

// do runs a request that names the peer's memory at offset at, and returns how
// it ended.
func (p *perftest) do(t *testing.T, at int, wr verbs.SendWR) verbs.WC {
	t.Helper()
	wr.ID, wr.Flags, wr.RemoteAddr, wr.RKey = 77, wr.Flags|verbs.SendSignaled, p.theirs.Addr+uint64(at), p.theirs.RKey
	wr.Datagram = p.peer
	_, err := p.qp.PostSend([]verbs.SendWR{wr})
	require.NoError(t, err)
	wc := p.next(t, p.cq)
	require.EqualValues(t, 77, wc.ID, "%v", wr.Opcode)
	return wc
}

// next waits for a completion.
func (p *perftest) next(t *testing.T, cq *verbs.CQ) verbs.WC {
	t.Helper()
	var wcs [1]verbs.WC
	for end := time.Now().Add(20 * time.Second); ; pause() {
		n, err := cq.Poll(wcs[:])
		require.NoError(t, err)
		if n == 1 {
			return wcs[0]
		}
		require.True(t, time.Now().Before(end), "no completion")
	}
}

// pause lets others run: on two processors there are the C program, which may not stop polling, and
// the model of a device.
func pause() { time.Sleep(20 * time.Microsecond) }
