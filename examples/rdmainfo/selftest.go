package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs"
)

// selfTest tests the usable devices, or the one of that name, and prints a report of each.
func selfTest(ctx context.Context, out io.Writer, name string, most time.Duration) error {
	r := collect()
	var tested, failed []string
	for i := range r.Devices {
		d := &r.Devices[i]
		if name != "" && d.Name != name {
			continue
		}
		if !d.Usable {
			if name != "" {
				return fmt.Errorf("%s cannot be used: %s", d.Name, d.Reason)
			}
			continue
		}
		for _, p := range d.Ports {
			if p.State != "ACTIVE" {
				continue
			}
			t := &deviceTest{device: d, port: &p}
			t.run(ctx, most)
			if err := t.print(out); err != nil {
				return err
			}
			tested = append(tested, fmt.Sprintf("%s/%d", d.Name, p.Port))
			if t.failures > 0 {
				failed = append(failed, tested[len(tested)-1])
			}
		}
	}
	switch {
	case len(failed) > 0:
		return fmt.Errorf("the self test has failed on %s", strings.Join(failed, ", "))
	case len(tested) == 0 && name != "":
		return fmt.Errorf("there is no device %s with an active port", name)
	case len(tested) == 0:
		return errors.New("there is no device that can be used with an active port")
	}
	return ctx.Err()
}

// A deviceTest is the self test of a port.
type deviceTest struct {
	device   *device
	port     *port
	ctx      *verbs.Context
	gid      verbs.GIDEntry
	lines    []string
	figures  string // of the check that runs
	failures int
}

// errLeftOut says that a device has no such thing.
var errLeftOut = errors.New("left out")

// errOfSIW says that a device does something wrong of which is known that its driver in
// the kernel always does, so that it says nothing about this device.
var errOfSIW = errors.New("a defect of the kernel's siw driver, see docs/troubleshooting.md")

func (t *deviceTest) run(ctx context.Context, most time.Duration) {
	began := time.Now()
	if !t.check("open the device, find a GID", t.open) {
		return
	}
	defer t.ctx.Close()
	for _, c := range []struct {
		name string
		run  func(*loop) error
	}{
		{"SEND of 0 bytes to 1 MiB", t.sends},
		{"SEND of inline data", t.inline},
		{"SEND with immediate", t.immediate},
		{"SEND gathered from three places", t.gathered},
		{"WRITE of 1 byte to 1 MiB", t.writes},
		{"WRITE with immediate", t.writeImmediate},
		{"READ of 1 byte to 1 MiB", t.reads},
		{"READ of up to 32 bytes that lie in two pages", t.readsOfTwoPages},
		{"CMP_AND_SWP", t.compareSwap},
		{"FETCH_AND_ADD", t.fetchAdd},
		{"WRITE by a memory window, until LOCAL_INV", t.windowTakenByItsOwner},
		{"WRITE by a memory window, until SEND_WITH_INV", t.windowTakenByItsPeer},
		{"completion events", t.events},
		{"requests without completions, thrice round the queue", t.unsignaled},
		{"a larger CQ", t.resized},
		{"a wrong key is refused, and what is behind it flushed", t.refused},
	} {
		if ctx.Err() != nil {
			return
		}
		t.check(c.name, func() error { return t.withLoop(c.run) })
	}
	for _, l := range latencies {
		if ctx.Err() != nil {
			return
		}
		t.check("latency of "+l.name, func() error { return t.withLoop(func(p *loop) error { return t.latency(p, &l) }) })
	}
	t.check("traffic", func() error {
		return t.withLoop(func(l *loop) error { return t.traffic(ctx, l, max(most-time.Since(began), 100*time.Millisecond)) })
	})
}

// check does one thing, and notes what came of it.
func (t *deviceTest) check(name string, run func() error) bool {
	t.figures = ""
	switch err := run(); {
	case errors.Is(err, errLeftOut):
		t.note("left out  %s: the device has none", name)
		return true
	case errors.Is(err, errOfSIW):
		t.note("wrong     %s: %v", name, err)
		return true
	case err != nil:
		t.failures++
		t.note("FAILED    %s: %v", name, err)
		return false
	}
	t.note("passed    %s%s", name, t.figures)
	return true
}

func (t *deviceTest) note(format string, args ...any) {
	t.lines = append(t.lines, fmt.Sprintf(format, args...))
}

func (t *deviceTest) open() error {
	ctx, err := verbs.Open(t.device.Name)
	if err != nil {
		return err
	}
	t.ctx = ctx
	table, err := ctx.QueryGIDs(t.port.Port)
	if err == nil {
		t.gid, err = chooseGID(table)
	}
	if err != nil {
		ctx.Close()
	}
	return err
}

// withLoop gives each check QPs of its own.
func (t *deviceTest) withLoop(run func(*loop) error) error {
	l, err := newLoop(t.ctx, t.port.Port, t.gid)
	if err != nil {
		return fmt.Errorf("two connected QPs: %w", err)
	}
	return errors.Join(run(l), l.close())
}

func (t *deviceTest) print(out io.Writer) error {
	w := &printer{out: out}
	result := "PASSED"
	if t.failures > 0 {
		result = fmt.Sprintf("%d FAILED", t.failures)
	}
	d := t.device
	w.line("ramjet self test of %s, port %d: %s", d.Name, t.port.Port, result)
	experimental := ""
	if uverbs.Experimental(d.Driver) {
		experimental = " (experimental: it has never run on a card; please paste this into an issue)"
	}
	w.list("  ", d.Transport+prefixed(", driver ", d.Driver)+experimental)
	w.list("  ", prefixed("firmware ", d.Firmware), d.Maker.String(), prefixed("model ", d.Model), prefixed("board ", d.Board), prefixed("revision ", d.Revision))
	w.list("  ", prefixed("link layer ", t.port.LinkLayer), prefixed("rate ", t.port.Rate), fmt.Sprintf("MTU %d", t.port.ActiveMTU),
		fmt.Sprintf("GID %d, %s, %v", t.gid.Index, gidTypeName(t.gid.Type), t.gid.GID))
	w.list("  ", system(), runtime.GOARCH, fmt.Sprintf("%d processors", runtime.NumCPU()), runtime.Version(), version())
	for _, line := range t.lines {
		w.line("  %s", line)
	}
	w.line("")
	return w.err
}

// system names the operating system and, of Linux, its kernel.
func system() string {
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		return "Linux " + strings.TrimSpace(string(release))
	}
	return runtime.GOOS
}

// version is that of ramjet, if the program was built from a module or a checkout.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return "ramjet " + s.Value
		}
	}
	return "ramjet " + info.Main.Version
}

var transferSizes = []int{1, 100, 4096, 65_537, 1 << 20}

func (t *deviceTest) sends(l *loop) error {
	for i, n := range append([]int{0}, transferSizes...) {
		fill(l.a.mr.Bytes()[:n], i)
		clear(l.b.mr.Bytes()[:n+1])
		if err := l.message(verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{l.a.mr.SGE(0, n)}}, n, nil); err != nil {
			return err
		}
		if err := sameBytes(l.a.mr.Bytes()[:n], l.b.mr.Bytes()[:n]); err != nil {
			return err
		}
		if l.b.mr.Bytes()[n] != 0 {
			return fmt.Errorf("more than %d bytes arrived", n)
		}
	}
	return nil
}

// message sends one from a to b, whose completion says so many bytes, and lets look see the completion.
func (l *loop) message(wr verbs.SendWR, n int, look func(verbs.WC) error) error {
	recv, err := l.b.receive(0, loopMemory)
	if err != nil {
		return err
	}
	sent, err := l.a.post(wr)
	if err != nil {
		return err
	}
	if _, err := l.a.succeed(sent); err != nil {
		return fmt.Errorf("%v of %d bytes: %w", wr.Opcode, n, err)
	}
	wc, err := l.b.succeed(recv)
	if err != nil {
		return fmt.Errorf("receive of %d bytes: %w", n, err)
	}
	if int(wc.ByteLen) != n {
		return fmt.Errorf("the receive says %d bytes of %d", wc.ByteLen, n)
	}
	if look != nil {
		return look(wc)
	}
	return nil
}

func sameBytes(want, got []byte) error {
	if bytes.Equal(want, got) {
		return nil
	}
	for i := range want {
		if want[i] != got[i] {
			return fmt.Errorf("byte %d of %d is %#x and was sent as %#x", i, len(want), got[i], want[i])
		}
	}
	return nil
}

func (t *deviceTest) inline(l *loop) error {
	most := l.a.qp.Attr().Cap.MaxInline
	if most == 0 {
		return errLeftOut
	}
	for _, n := range []int{1, 3, most} {
		data := make([]byte, n)
		fill(data, n)
		want := bytes.Clone(data)
		wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{data[:n/2], data[n/2:]}}
		if err := l.message(wr, n, nil); err != nil {
			return err
		}
		if err := sameBytes(want, l.b.mr.Bytes()[:n]); err != nil {
			return err
		}
	}
	return nil
}

func (t *deviceTest) needs(c verbs.Cap) error {
	if !t.ctx.Attr().Caps.Has(c) {
		return errLeftOut
	}
	return nil
}

const someImm = 0x1a2b3c4d

func hasImm(wc verbs.WC) error {
	if wc.Flags&verbs.WCWithImm == 0 || wc.Imm != someImm {
		return fmt.Errorf("the immediate is %#x, flags %#x, and was %#x", wc.Imm, wc.Flags, someImm)
	}
	return nil
}

func (t *deviceTest) immediate(l *loop) error {
	if err := t.needs(verbs.CapSendWithImm); err != nil {
		return err
	}
	return l.message(verbs.SendWR{Opcode: verbs.OpSendWithImm, Imm: someImm, SGL: []verbs.SGE{l.a.mr.SGE(0, 10)}}, 10, hasImm)
}

func (t *deviceTest) gathered(l *loop) error {
	if l.a.qp.Attr().Cap.MaxSendSGE < 3 {
		return errLeftOut
	}
	memory := l.a.mr.Bytes()
	fill(memory[:30_000], 7)
	wr := verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{l.a.mr.SGE(20_000, 777), l.a.mr.SGE(1, 4095), l.a.mr.SGE(10_000, 2)}}
	if err := l.message(wr, 777+4095+2, nil); err != nil {
		return err
	}
	return sameBytes(slices.Concat(memory[20_000:20_777], memory[1:4096], memory[10_000:10_002]), l.b.mr.Bytes()[:4874])
}

// do runs a request of a on b's memory to its end.
func (l *loop) do(wr verbs.SendWR) error {
	wr.RemoteAddr, wr.RKey = wr.RemoteAddr+l.b.mr.Addr(), l.b.mr.RKey()
	id, err := l.a.post(wr)
	if err == nil {
		_, err = l.a.succeed(id)
	}
	if err != nil {
		return fmt.Errorf("%v: %w", wr.Opcode, err)
	}
	return nil
}

// placed returns when what a has written is in b's memory: of iWARP only a message behind it says so.
func (l *loop) placed() error {
	if l.ctx.Attr().Transport != verbs.TransportIWARP {
		return nil
	}
	return l.message(verbs.SendWR{Opcode: verbs.OpSend}, 0, nil)
}

const remoteOffset = 2 << 20 // of what is written and read

func (t *deviceTest) writes(l *loop) error {
	for i, n := range transferSizes {
		fill(l.a.mr.Bytes()[:n], i+10)
		if err := l.do(verbs.SendWR{Opcode: verbs.OpWrite, RemoteAddr: remoteOffset, SGL: []verbs.SGE{l.a.mr.SGE(0, n)}}); err != nil {
			return err
		}
		if err := l.placed(); err != nil {
			return err
		}
		if err := sameBytes(l.a.mr.Bytes()[:n], l.b.mr.Bytes()[remoteOffset:][:n]); err != nil {
			return err
		}
	}
	return nil
}

func (t *deviceTest) writeImmediate(l *loop) error {
	if err := t.needs(verbs.CapWriteWithImm); err != nil {
		return err
	}
	fill(l.a.mr.Bytes()[:5000], 3)
	wr := verbs.SendWR{Opcode: verbs.OpWriteWithImm, Imm: someImm, RemoteAddr: l.b.mr.Addr() + remoteOffset, RKey: l.b.mr.RKey(), SGL: []verbs.SGE{l.a.mr.SGE(0, 5000)}}
	if err := l.message(wr, 5000, hasImm); err != nil {
		return err
	}
	return sameBytes(l.a.mr.Bytes()[:5000], l.b.mr.Bytes()[remoteOffset:][:5000])
}

func (t *deviceTest) reads(l *loop) error {
	if err := t.needs(verbs.CapRead); err != nil {
		return err
	}
	for i, n := range transferSizes {
		fill(l.b.mr.Bytes()[remoteOffset:][:n], i+20)
		if err := l.do(verbs.SendWR{Opcode: verbs.OpRead, RemoteAddr: remoteOffset, SGL: []verbs.SGE{l.a.mr.SGE(0, n)}}); err != nil {
			return err
		}
		if err := sameBytes(l.b.mr.Bytes()[remoteOffset:][:n], l.a.mr.Bytes()[:n]); err != nil {
			return err
		}
	}
	return nil
}

const (
	leastPage = 4096
	shortRead = 32 // bytes whose answer siw copies behind a header
)

// answeredWronglyBySIW reports whether n bytes at an offset of the remote memory are what
// siw copies wrongly: a few that lie in two pages.
func (t *deviceTest) answeredWronglyBySIW(at, n int) bool {
	return t.device.Driver == "siw" && n <= shortRead && at%leastPage+n > leastPage
}

func (t *deviceTest) readsOfTwoPages(l *loop) error {
	if err := t.needs(verbs.CapRead); err != nil {
		return err
	}
	for n := 2; n <= shortRead; n += 6 {
		at := remoteOffset + leastPage - 1
		theirs, ours := l.b.mr.Bytes()[at:][:n], l.a.mr.Bytes()[:n]
		fill(theirs, n)
		clear(ours)
		if err := l.do(verbs.SendWR{Opcode: verbs.OpRead, RemoteAddr: uint64(at), SGL: []verbs.SGE{l.a.mr.SGE(0, n)}}); err != nil {
			return err
		}
		err := sameBytes(theirs, ours)
		if err != nil && t.answeredWronglyBySIW(at, n) {
			return errOfSIW // not which bytes came: they are from anybody's memory
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// atomic runs a request and compares what it fetched and left.
func (l *loop) atomic(wr verbs.SendWR, before, after uint64) error {
	theirs, ours := l.b.mr.Bytes()[64:72], l.a.mr.Bytes()[:8]
	wr.RemoteAddr, wr.SGL = 64, []verbs.SGE{l.a.mr.SGE(0, 8)}
	if err := l.do(wr); err != nil {
		return err
	}
	if fetched := binary.NativeEndian.Uint64(ours); fetched != before {
		return fmt.Errorf("%v fetched %#x, and %#x was there", wr.Opcode, fetched, before)
	}
	if left := binary.NativeEndian.Uint64(theirs); left != after {
		return fmt.Errorf("%v left %#x instead of %#x", wr.Opcode, left, after)
	}
	return nil
}

func (t *deviceTest) compareSwap(l *loop) error {
	if err := t.needs(verbs.CapAtomics); err != nil {
		return err
	}
	const one, two = 0x0102030405060708, 0x1112131415161718
	binary.NativeEndian.PutUint64(l.b.mr.Bytes()[64:], one)
	if err := l.atomic(verbs.SendWR{Opcode: verbs.OpCompareSwap, CompareAdd: two, Swap: 5}, one, one); err != nil {
		return err
	}
	return l.atomic(verbs.SendWR{Opcode: verbs.OpCompareSwap, CompareAdd: one, Swap: two}, one, two)
}

func (t *deviceTest) fetchAdd(l *loop) error {
	if err := t.needs(verbs.CapAtomics); err != nil {
		return err
	}
	binary.NativeEndian.PutUint64(l.b.mr.Bytes()[64:], 0xffff_ffff)
	return l.atomic(verbs.SendWR{Opcode: verbs.OpFetchAdd, CompareAdd: 3}, 0xffff_ffff, 0x1_0000_0002)
}

func (t *deviceTest) events(l *loop) error {
	for range 100 {
		recv, err := l.b.receive(0, 8)
		if err != nil {
			return err
		}
		if err := l.b.cq.Arm(false); err != nil {
			return err
		}
		sent, err := l.a.post(verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{l.a.mr.SGE(0, 8)}})
		if err != nil {
			return err
		}
		for !l.b.has(recv) {
			if err := l.b.ch.Wait(time.Now().Add(loopPatience)); err != nil { // ends with the event
				return fmt.Errorf("no event: %w", err)
			}
			if err := l.b.cq.Arm(false); err != nil {
				return err
			}
			if _, err := l.b.poll(); err != nil {
				return err
			}
		}
		if _, err := l.a.succeed(sent); err != nil {
			return err
		}
		delete(l.b.done, recv)
	}
	return nil
}

func (t *deviceTest) unsignaled(l *loop) error {
	fill(l.a.mr.Bytes()[:4096], 9)
	wr := verbs.SendWR{Opcode: verbs.OpWrite, RemoteAddr: l.b.mr.Addr() + remoteOffset, RKey: l.b.mr.RKey(), SGL: []verbs.SGE{l.a.mr.SGE(0, 4096)}}
	for range 3 {
		for range loopRequests - 1 {
			if _, err := l.a.qp.PostSend([]verbs.SendWR{wr}); err != nil {
				return err
			}
		}
		id, err := l.a.post(wr)
		if err != nil {
			return err
		}
		if _, err := l.a.succeed(id); err != nil {
			return err
		}
	}
	if len(l.a.done) > 0 {
		return fmt.Errorf("%d completions for which nobody has asked", len(l.a.done))
	}
	if err := l.placed(); err != nil {
		return err
	}
	return sameBytes(l.a.mr.Bytes()[:4096], l.b.mr.Bytes()[remoteOffset:][:4096])
}

func (t *deviceTest) resized(l *loop) error {
	if err := t.needs(verbs.CapResizeCQ); err != nil {
		return err
	}
	var ids []uint64
	for range 10 {
		id, err := l.a.post(verbs.SendWR{Opcode: verbs.OpWrite, RemoteAddr: l.b.mr.Addr(), RKey: l.b.mr.RKey(), SGL: []verbs.SGE{l.a.mr.SGE(0, 64)}})
		if err != nil {
			return err
		}
		ids = append(ids, id)
	}
	if err := l.a.cq.Resize(10 * loopRequests); err != nil {
		return err
	}
	for _, id := range ids {
		if _, err := l.a.succeed(id); err != nil {
			return err
		}
	}
	return nil
}

func (t *deviceTest) refused(l *loop) error {
	if t.ctx.Attr().Transport == verbs.TransportIWARP {
		return errLeftOut // a request completes when TCP has taken it
	}
	bad := verbs.SendWR{Opcode: verbs.OpWrite, RemoteAddr: l.b.mr.Addr(), RKey: l.b.mr.RKey() ^ 0x5a, SGL: []verbs.SGE{l.a.mr.SGE(0, 64)}}
	first, err := l.a.post(bad)
	if err != nil {
		return err
	}
	wc, err := l.a.completion(first)
	if err != nil {
		return err
	}
	if wc.Status != verbs.WCRemAccessErr {
		return fmt.Errorf("the status is %v", wc.Status)
	}
	second, err := l.a.receive(0, 8)
	if err != nil {
		return err
	}
	if wc, err = l.a.completion(second); err != nil {
		return err
	}
	if wc.Status != verbs.WCWRFlushErr {
		return fmt.Errorf("the status of what is flushed is %v", wc.Status)
	}
	return nil
}

// latencies are round trips that are measured, and whether those who wait sleep.
var latencies = []latencyKind{
	{"SEND of 64 bytes and back, polling", verbs.OpSend, false},
	{"SEND of 64 bytes and back, with events", verbs.OpSend, true},
	{"WRITE of 64 bytes, polling", verbs.OpWrite, false},
	{"READ of 64 bytes, polling", verbs.OpRead, false},
	{"FETCH_AND_ADD, polling", verbs.OpFetchAdd, false},
}

type latencyKind struct {
	name   string
	opcode verbs.Opcode
	events bool
}

func (t *deviceTest) latency(l *loop, kind *latencyKind) error {
	const rounds, most = 2000, 300 * time.Millisecond
	round := l.there
	switch kind.opcode {
	case verbs.OpSend:
		round = l.thereAndBack
	case verbs.OpRead:
		if err := t.needs(verbs.CapRead); err != nil {
			return err
		}
	case verbs.OpFetchAdd:
		if err := t.needs(verbs.CapAtomics); err != nil {
			return err
		}
	}
	var took []time.Duration
	for began := time.Now(); len(took) < rounds && time.Since(began) < most; {
		start := time.Now()
		if err := round(kind); err != nil {
			return err
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	t.figures = fmt.Sprintf(": median %v, 99%% within %v, of %d", took[len(took)/2], took[len(took)*99/100], len(took))
	return nil
}

// there is a request and its completion.
func (l *loop) there(kind *latencyKind) error {
	n := 64
	if kind.opcode == verbs.OpFetchAdd {
		n = 8
	}
	return l.do(verbs.SendWR{Opcode: kind.opcode, SGL: []verbs.SGE{l.a.mr.SGE(0, n)}})
}

func (l *loop) thereAndBack(kind *latencyKind) error {
	for _, way := range [][2]*end{{l.a, l.b}, {l.b, l.a}} {
		from, to := way[0], way[1]
		recv, err := to.receive(128, 64)
		if err != nil {
			return err
		}
		sent, err := from.post(verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{from.mr.SGE(0, 64)}})
		if err != nil {
			return err
		}
		for kind.events && !to.has(recv) {
			if err := to.sleep(); err != nil {
				return err
			}
			if _, err := to.poll(); err != nil {
				return err
			}
		}
		if _, err := to.succeed(recv); err != nil {
			return err
		}
		if _, err := from.succeed(sent); err != nil {
			return err
		}
	}
	return nil
}

// traffic is requests of any kind and size for a time, each of which is compared.
func (t *deviceTest) traffic(ctx context.Context, l *loop, most time.Duration) error {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	caps := t.ctx.Attr().Caps
	requests, compared := 0, 0
	began := time.Now()
	for time.Since(began) < most && ctx.Err() == nil {
		from, to := l, &loop{ctx: l.ctx, a: l.b, b: l.a}
		if random.IntN(2) == 0 {
			from, to = to, from
		}
		n := 1 + random.IntN(1<<random.IntN(19))
		at := random.IntN(1 << 20)
		fill(from.a.mr.Bytes()[:n], requests)
		opcode := verbs.OpSend
		var err error
		switch kind := random.IntN(3); {
		case kind == 1:
			opcode = verbs.OpWrite
			if err = from.do(verbs.SendWR{Opcode: opcode, RemoteAddr: uint64(remoteOffset + at), SGL: []verbs.SGE{from.a.mr.SGE(0, n)}}); err == nil {
				err = from.placed()
			}
			if err == nil {
				err = sameBytes(from.a.mr.Bytes()[:n], from.b.mr.Bytes()[remoteOffset+at:][:n])
			}
		case kind == 2 && caps.Has(verbs.CapRead):
			opcode = verbs.OpRead
			if t.answeredWronglyBySIW(at, n) {
				at -= at % leastPage
			}
			fill(from.b.mr.Bytes()[remoteOffset+at:][:n], ^requests)
			if err = from.do(verbs.SendWR{Opcode: opcode, RemoteAddr: uint64(remoteOffset + at), SGL: []verbs.SGE{from.a.mr.SGE(0, n)}}); err == nil {
				err = sameBytes(from.b.mr.Bytes()[remoteOffset+at:][:n], from.a.mr.Bytes()[:n])
			}
		default:
			if err = from.message(verbs.SendWR{Opcode: opcode, SGL: []verbs.SGE{from.a.mr.SGE(0, n)}}, n, nil); err == nil {
				err = sameBytes(from.a.mr.Bytes()[:n], from.b.mr.Bytes()[:n])
			}
		}
		if err != nil {
			return fmt.Errorf("request %d, %v of %d bytes: %w", requests, opcode, n, err)
		}
		requests++
		compared += n
	}
	t.figures = fmt.Sprintf(": %d requests, %d MiB compared, in %v", requests, compared>>20, time.Since(began).Round(time.Millisecond))
	return nil
}
