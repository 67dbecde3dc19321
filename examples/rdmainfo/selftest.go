package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs"
)

// experimentalVar names the experimental drivers that package uverbs is to use.
const experimentalVar = "RAMJET_EXPERIMENTAL"

// selfTest tests the usable devices, or the one of that name, and prints a report of each. It is
// there to try experimental drivers too, so it turns on that for ConnectX, unless the environment names others.
func selfTest(ctx context.Context, out io.Writer, name string, most time.Duration) error {
	if os.Getenv(experimentalVar) == "" {
		if err := os.Setenv(experimentalVar, "mlx5"); err != nil {
			return err
		}
		defer os.Unsetenv(experimentalVar)
	}
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
			if p.State != "ACTIVE" || ctx.Err() != nil {
				continue
			}
			t := &deviceTest{device: d, port: &p}
			t.run(ctx, most)
			t.interrupted = ctx.Err() != nil
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
	case ctx.Err() != nil:
		return ctx.Err()
	case len(tested) == 0 && name != "":
		return fmt.Errorf("there is no device %s with an active port", name)
	case len(tested) == 0:
		return errors.New("there is no device that can be used with an active port")
	}
	return nil
}

// A deviceTest is the self test of a port.
type deviceTest struct {
	device      *device
	port        *port
	ctx         *verbs.Context
	gid         verbs.GIDEntry
	events      chan verbs.AsyncEvent // of the device; closed when it is
	reader      sync.WaitGroup        // fills events
	lines       []string
	figures     string // of the check that runs
	failures    int
	interrupted bool // not all was checked
}

// leftOut says why there is nothing to check.
type leftOut string

func (why leftOut) Error() string { return string(why) }

const errNone = leftOut("the device has none")

// errOfSIW is a failure that comes from a known defect of the kernel's siw driver.
var errOfSIW = errors.New("a defect of the kernel's siw driver, see docs/troubleshooting.md")

func (t *deviceTest) run(ctx context.Context, most time.Duration) {
	began := time.Now()
	if !t.check("open the device, find a GID", t.open) {
		return
	}
	defer t.reader.Wait() // ends with the context
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
		{"completion events", t.completionEvents},
		{"completion events of solicited messages", t.solicitedEvents},
		{"requests without completions, thrice round the queue", t.unsignaled},
		{"a larger CQ", t.resized},
		{"a wrong key is refused, and what is behind it flushed", t.refused},
	} {
		if ctx.Err() != nil {
			return
		}
		t.check(c.name, func() error { return t.withLoop(ofRC, c.run) })
	}
	unreliable, datagrams := loopKind{service: verbs.QPTypeUC}, loopKind{service: verbs.QPTypeUD}
	shared, xrc := loopKind{service: verbs.QPTypeRC, shared: true}, loopKind{service: verbs.QPTypeXRCInitiator}
	stamped := loopKind{service: verbs.QPTypeRC, stamped: true}
	for _, c := range []struct {
		name  string
		kind  loopKind
		needs verbs.Cap
		run   func(*loop) error
	}{
		{"UC: SEND, and with immediate", unreliable, verbs.CapUC, t.unreliableSends},
		{"UC: WRITE, and with immediate", unreliable, verbs.CapUC, t.unreliableWrites},
		{"UD: datagrams up to the MTU, and answers to where they came from", datagrams, verbs.CapUD, t.datagrams},
		{"UD: datagrams to a multicast group", datagrams, verbs.CapUD | verbs.CapMulticast, t.multicast},
		{"SRQ: SEND of 0 bytes to 1 MiB", shared, verbs.CapSRQ, t.sends},
		{"SRQ: the event of its limit", shared, verbs.CapSRQ, t.limitReached},
		{"SRQ: the event of a QP that will take no more from it", shared, verbs.CapSRQ, t.lastRequestReached},
		{"XRC: SEND of 0 bytes to 1 MiB", xrc, verbs.CapXRC, t.sends},
		{"XRC: each message finds the SRQ that it names", xrc, verbs.CapXRC, t.namedSRQs},
		{"XRC: WRITE of 1 byte to 1 MiB", xrc, verbs.CapXRC, t.writes},
		{"XRC: READ of 1 byte to 1 MiB", xrc, verbs.CapXRC | verbs.CapRead, t.reads},
		{"XRC: FETCH_AND_ADD", xrc, verbs.CapXRC | verbs.CapAtomics, t.fetchAdd},
		{"the device's time of completions", stamped, verbs.CapTimestamps, t.timestamps},
		{"events of a moderated CQ", ofRC, verbs.CapModerateCQ, t.moderated},
	} {
		if ctx.Err() != nil {
			return
		}
		t.check(c.name, func() error {
			if err := t.needs(c.needs); err != nil {
				return err
			}
			return t.withLoop(c.kind, c.run)
		})
	}
	for _, l := range latencies {
		if ctx.Err() != nil {
			return
		}
		t.check("latency of "+l.name, func() error { return t.withLoop(ofRC, func(p *loop) error { return t.latency(p, &l) }) })
	}
	t.check("traffic", func() error {
		return t.withLoop(ofRC, func(l *loop) error { return t.traffic(ctx, l, max(most-time.Since(began), 100*time.Millisecond)) })
	})
}

// check does one thing, and notes what came of it.
func (t *deviceTest) check(name string, run func() error) bool {
	t.figures = ""
	err := run()
	why, isLeftOut := errors.AsType[leftOut](err)
	switch {
	case isLeftOut:
		t.note("left out  %s: %v", name, why)
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
		return err
	}
	t.events = make(chan verbs.AsyncEvent, 16)
	t.reader.Go(t.readEvents)
	return nil
}

// withLoop gives each check QPs of its own.
func (t *deviceTest) withLoop(kind loopKind, run func(*loop) error) error {
	l, err := newLoop(t.ctx, t.port.Port, t.gid, kind)
	if err != nil {
		return fmt.Errorf("two QPs: %w", err)
	}
	ran, closed := run(l), l.close()
	if _, isLeftOut := errors.AsType[leftOut](ran); isLeftOut && closed != nil {
		return closed // which is a failure
	}
	return errors.Join(ran, closed)
}

func (t *deviceTest) print(out io.Writer) error {
	w := &printer{out: out}
	result := "PASSED"
	switch {
	case t.failures > 0:
		result = fmt.Sprintf("%d FAILED", t.failures)
	case t.interrupted:
		result = "INTERRUPTED"
	}
	d := t.device
	w.line("ramjet self test of %s, port %d: %s", d.Name, t.port.Port, result)
	experimental := ""
	if uverbs.Experimental(d.Driver) {
		experimental = fmt.Sprintf(" (experimental, %s=%s: it has never run on a card; please paste this into an issue)", experimentalVar, os.Getenv(experimentalVar))
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

func (t *deviceTest) needs(c verbs.Cap) error {
	if !t.ctx.Attr().Caps.Has(c) {
		return errNone
	}
	return nil
}
