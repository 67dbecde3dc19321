package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/examples/internal/programtest"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs"
)

// run runs the program and returns what it prints.
func run(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	err := rdmainfo(t.Context(), args, &out)
	require.NoError(t, err, "%s", &out)
	return out.String()
}

// patient lets no TCP connection win because the machine is slow.
const patient = "-headstart=5s"

// decoded is the report that -json prints.
func decoded(t *testing.T, args ...string) (r report) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(run(t, append([]string{"-json"}, args...)...)))
	dec.DisallowUnknownFields()
	require.NoError(t, dec.Decode(&r))
	return r
}

func TestSelfTestOfTheSoftwareHCA(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the software HCA needs Linux")
	}
	said := run(t, "-selftest", "-time", "300ms", "-device", "soft0")
	require.Contains(t, said, "ramjet self test of soft0, port 1: PASSED\n")
	require.NotContains(t, said, "FAILED")
	require.NotContains(t, said, "%!")
	require.Equal(t, strings.Count(said, "\n  left out  "), strings.Count(said, "\n  left out  XRC: "), "%s", said)
	require.Contains(t, said, "\n  left out  XRC: SEND of 0 bytes to 1 MiB: the device has none\n")
	for _, line := range []string{"READ of 1 byte to 1 MiB", "a wrong key is refused, and what is behind it flushed",
		"UC: WRITE, and with immediate", "UD: datagrams up to the MTU", "SRQ: the event of its limit", "SRQ: the event of a QP that",
		"UD: datagrams to a multicast group", "the device's time of completions: a clock of 1000 MHz, ", "events of a moderated CQ",
		"latency of SEND of 64 bytes and back, with events: median ", "traffic: "} {
		require.Contains(t, said, "\n  passed    "+line)
	}
	require.ErrorContains(t, rdmainfo(t.Context(), []string{"-selftest", "-device", "mlx5_9"}, io.Discard), "there is no device mlx5_9")
}

// What a device does wrong is a failed check, and a status that is not 0.
func TestSelfTestFindsWhatIsWrong(t *testing.T) {
	d := &deviceTest{device: &device{Name: "x"}, port: &port{Port: 1}}
	require.False(t, d.check("data", func() error { return sameBytes([]byte{1, 2}, []byte{1, 3}) }))
	require.True(t, d.check("atomics", func() error { return errNone }))
	var out bytes.Buffer
	require.NoError(t, d.print(&out))
	require.Contains(t, out.String(), "x, port 1: 1 FAILED\n")
	require.Contains(t, out.String(), "  FAILED    data: byte 1 of 2 is 0x3 and was sent as 0x2\n  left out  atomics: the device has none\n")
}

// endsSoon is a context that is canceled once it was asked so many times.
type endsSoon struct {
	context.Context
	left int
}

func (c *endsSoon) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

func TestSelfTestThatIsInterruptedHasNotPassed(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the software HCA needs Linux")
	}
	var out bytes.Buffer
	ctx := &endsSoon{t.Context(), 5}
	require.ErrorIs(t, rdmainfo(ctx, []string{"-selftest", "-device", "soft0"}, &out), context.Canceled)
	require.Contains(t, out.String(), "ramjet self test of soft0, port 1: INTERRUPTED\n")
}

// What is left out has QPs, and those are closed.
func TestSelfTestTellsOfWhatCannotBeClosed(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the software HCA needs Linux")
	}
	d := &deviceTest{device: &device{Name: "soft0"}, port: &port{Port: 1}}
	require.NoError(t, d.open())
	defer d.reader.Wait() // ends with the context
	defer d.ctx.Close()
	for _, what := range []error{nil, errNone} {
		require.False(t, d.check("windows", func() error {
			return d.withLoop(ofRC, func(l *loop) error {
				// which the PD waits for
				_, err := l.a.pd.AllocMR(1, verbs.AccessLocalWrite, verbs.MROptions{})
				require.NoError(t, err)
				return what
			})
		}), "%v", what)
	}
	require.True(t, d.check("windows", func() error { return d.withLoop(ofRC, func(*loop) error { return errNone }) }))
}

func TestReportIsTheSameForPeopleAndPrograms(t *testing.T) {
	text, r := run(t), decoded(t)
	require.Empty(t, r.Problems)
	require.NotContains(t, text, "%!")
	for _, d := range r.Devices {
		require.Contains(t, text, d.Name+": "+d.Transport)
		require.True(t, d.Usable, d.Reason)
		for _, p := range d.Ports {
			for _, g := range p.GIDs {
				if d.Provider == uverbs.ProviderName { // the software HCA's is new each time
					require.Contains(t, text, g.GID)
				}
			}
		}
	}
	for _, m := range r.Limits.MissingModules {
		require.Contains(t, text, m)
	}
	if runtime.GOOS == "linux" {
		require.Contains(t, text, "RLIMIT_MEMLOCK")
		require.Contains(t, text, "soft0: soft")
		require.NotZero(t, r.Limits.OpenFiles)
	}
}

func TestHostWithoutRDMASaysWhatIsMissing(t *testing.T) {
	var out bytes.Buffer
	w := &printer{out: &out}
	w.report(&report{Limits: limits{MissingModules: []string{"ib_core", "ib_uverbs", "rdma_ucm"}}})
	require.Contains(t, out.String(), "no RDMA device of the kernel: not loaded or not there: ib_core, ib_uverbs, rdma_ucm (modprobe ib_core)")
	out.Reset()
	w.report(&report{})
	require.Contains(t, out.String(), "rdma link add rxe0 type rxe")
}

func TestLimitsAreSpelledOut(t *testing.T) {
	const none = limit(rdmahost.NoLimit)
	l := limits{
		Memlock:   memlock{Soft: 64 << 10, Hard: none, Pinned: 1536, Exempt: true},
		OpenFiles: 1024,
		Cgroups:   []cgroup{{Group: "/a/b", Device: "rxe0", Handles: quota{none, 1}, Objects: quota{2, 2}, Process: &usage{1, 0}}, {Group: "/a", Device: "rxe0", Handles: quota{3, 3}, Objects: quota{none, 5}}},
		Nodes: []node{
			{Path: "/dev/infiniband/uverbs0", Mode: "0600", Owner: "root", Group: "root", Error: "permission denied"},
			{Path: "/dev/infiniband/rdma_cm", Error: "no such file"},
		},
	}
	var out bytes.Buffer
	w := &printer{out: &out}
	w.limits(&l)
	for _, want := range []string{
		"RLIMIT_MEMLOCK 64 KiB (hard unlimited), 1.5 KiB pinned; CAP_IPC_LOCK lifts it, except for siw",
		"rdma cgroup /a/b, rxe0: hca_handle 1 of unlimited, hca_object 2 of 2; of this process 1 and 0\n",
		"rdma cgroup /a, rxe0: hca_handle 3 of 3, hca_object 5 of unlimited\n",
		"/dev/infiniband/uverbs0 0600 root root: permission denied",
		"/dev/infiniband/rdma_cm: no such file",
	} {
		require.Contains(t, out.String(), want)
	}
	b, err := json.Marshal(l.Cgroups[:1])
	require.NoError(t, err)
	require.JSONEq(t, `[{"group":"/a/b","device":"rxe0","hcaHandle":{"max":null,"current":1},"hcaObject":{"max":2,"current":2},"process":{"hcaHandle":1,"hcaObject":0}}]`, string(b))
}

func TestUnusableDeviceSaysWhy(t *testing.T) {
	var out bytes.Buffer
	w := &printer{out: &out}
	ports := []port{{Port: 1, State: "ACTIVE", LinkLayer: "InfiniBand", LID: 7, SMLID: 1}}
	const of = "  port 1: ACTIVE, InfiniBand\n    LID 7, LMC 0, SM LID 1, capability mask 0x00000000\n"
	w.device(&device{Name: "mlx4_0", Transport: "infiniband", Driver: "mlx4", Reason: "no driver for it", Ports: ports})
	require.Equal(t, "mlx4_0: infiniband, driver mlx4\n  ramjet cannot use it: no driver for it\n"+of, out.String())
	if runtime.GOOS != "linux" {
		return // there is no driver at all
	}
	out.Reset()
	w.device(&device{Name: "mlx5_0", Transport: "infiniband", Driver: "mlx5", Reason: "it is off", Ports: ports})
	require.Equal(t, "mlx5_0: infiniband, driver mlx5\n  ramjet cannot use it: it is off\n"+
		"  there is an experimental driver for it, which -selftest turns on for as long as it runs\n"+of, out.String())
}

func TestDeviceIsShownAsByTheToolsOfTheFabric(t *testing.T) {
	var out bytes.Buffer
	w := &printer{out: &out}
	w.device(&device{
		Name: "mlx5_0", Transport: "infiniband", NodeType: "CA", NodeGUID: "ec0d:9a03:0000:0002", ImageGUID: "ec0d:9a03:0000:0001", Firmware: "16.35.2000",
		Model: "MT4119", Board: "MT_0000000012", Revision: "0", Maker: &maker{0x2c9, 4119, 0}, Usable: true,
		Ports: []port{{
			Port: 2, State: "ACTIVE", LinkLayer: "InfiniBand", LID: 26, LMC: 2, SMLID: 1, PortCaps: 0x651e84a,
			ActiveMTU: 2048, MaxMTU: 4096, MaxMsg: 1 << 30, GIDTable: 8, PKeyTable: 128,
		}},
	})
	require.Equal(t, `mlx5_0: infiniband
  ramjet can use it
  CA, node GUID ec0d:9a03:0000:0002, system image GUID ec0d:9a03:0000:0001, firmware 16.35.2000
  vendor 0x02c9, part 4119, hardware version 0x0, model MT4119, board MT_0000000012, revision 0
  port 2: ACTIVE, InfiniBand, MTU 2048 of 4096
    LID 26, LMC 2, SM LID 1, capability mask 0x0651e84a
    messages of up to 1 GiB, a table of 8 GIDs, one of 128 P_Keys
`, out.String())
}

func TestRouteNamesThePortOnlyIfThereAreSeveral(t *testing.T) {
	var out bytes.Buffer
	w := &printer{out: &out}
	w.address(&address{Address: "a:1", Transport: "tcp", Reason: "none", Routes: []route{
		{Fabric: "kernel", IP: "10.0.0.2:1", Local: "10.0.0.1", Device: "mlx5_0", Port: 2, several: true},
		{Fabric: "kernel", IP: "10.0.0.2:1", Local: "10.0.0.1", Device: "rxe0", Port: 1},
	}})
	require.Contains(t, out.String(), "kernel to 10.0.0.2:1: from 10.0.0.1 over mlx5_0/2\n")
	require.Contains(t, out.String(), "kernel to 10.0.0.2:1: from 10.0.0.1 over rxe0\n")
}

// serve accepts and closes, and returns the address.
func serve(t *testing.T, ln net.Listener, err error) string {
	t.Helper()
	require.NoError(t, err)
	go func() {
		for {
			c, err := ln.Accept() // ends with Close of ln
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { ln.Close() })
	return ln.Addr().String()
}

func TestAddressOfAnOrdinaryServerSaysWhyItIsTCP(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	addr := serve(t, ln, err)
	r := decoded(t, addr)
	require.Len(t, r.Addresses, 1)
	a := r.Addresses[0]
	require.Equal(t, "tcp", a.Transport)
	require.NotEqual(t, "none", a.Reason)
	require.NotEmpty(t, a.Meaning)
	require.Len(t, a.Routes, 2)
	text := run(t, addr)
	require.Contains(t, text, addr+": a dial takes tcp")
	require.Contains(t, text, "why nothing faster: ")
	require.NotContains(t, text, "RLIMIT_MEMLOCK", "who asks for an address gets that")
}

func TestAddressOfARamjetServerIsFast(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has the software HCA")
	}
	ln, err := rnet.Listen("tcp", "127.0.0.1:0")
	addr := serve(t, ln, err)
	a := decoded(t, patient, addr).Addresses[0]
	require.Equal(t, "soft", a.Transport)
	require.Equal(t, "soft0", a.Device)
	require.Equal(t, "none", a.Reason)
	soft := a.Routes[0]
	require.Equal(t, "soft0", soft.Device)
	require.EqualValues(t, 1, soft.Port)
	require.Contains(t, run(t, patient, addr), addr+": a dial takes soft over soft0, the fastest there is")
}

// slow is a fabric that uses up all the time.
type slow struct {
	rcm.Fabric
	end func()
}

func (slow) Name() string { return "slow" }

func (s slow) Resolve(ctx context.Context, _ netip.AddrPort) (rcm.Route, error) {
	s.end()
	return nil, ctx.Err()
}

func TestDialHasTimeWhateverFabricsTake(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	addr := serve(t, ln, err)
	ctx, end := context.WithCancel(t.Context())
	a := try(ctx, addr, time.Minute, 0, slow{end: end})
	require.Empty(t, a.Error)
	require.Equal(t, "tcp", a.Transport)
	require.Equal(t, []route{{Fabric: "slow", IP: addr, Error: "context canceled"}}, a.Routes)
}

func TestAddressThatDoesNotAnswerIsToldSo(t *testing.T) {
	addr := programtest.NobodysAddress(t)
	require.Contains(t, run(t, addr), addr+": a dial fails: ")
	require.Contains(t, run(t, "no-port"), "no-port: a dial fails: ")
}

func TestRatesAreWhatGrewPerSecond(t *testing.T) {
	begin := time.Now()
	reading := func(after time.Duration, rx, packets, retries uint64) rdmahost.PortCounters {
		return rdmahost.PortCounters{
			Time: begin.Add(after), Driver: []rdmahost.Counter{{Name: "retries", Value: retries}, {Name: "idle", Value: 5}},
			Traffic: rdmahost.Traffic{RxBytes: rx, TxPackets: packets, BytesFrom: "netdev eth0", PacketsFrom: "hw_counters"},
		}
	}
	one, two, gone := portKey{"rxe0", 1}, portKey{"rxe0", 2}, portKey{"siw0", 1}
	list := samples(
		map[portKey]rdmahost.PortCounters{two: reading(0, 1000, 10, 1), one: reading(0, 50, 60, 70), gone: reading(0, 1, 1, 1)},
		map[portKey]rdmahost.PortCounters{two: reading(2*time.Second, 3000, 30, 4), one: reading(2*time.Second, 20, 80, 70), {"new0", 1}: reading(0, 1, 1, 1)},
	)
	require.Equal(t, []sample{
		// It was removed and added again: its bytes began anew.
		{Time: begin.Add(2 * time.Second), Device: "rxe0", Port: 1, RxBytes: 10, TxPackets: 10, BytesFrom: "netdev eth0", PacketsFrom: "hw_counters"},
		{Time: begin.Add(2 * time.Second), Device: "rxe0", Port: 2, RxBytes: 1000, TxPackets: 10, BytesFrom: "netdev eth0", PacketsFrom: "hw_counters",
			Counters: []namedCounter{{"retries", 3}}},
	}, list)
	var out bytes.Buffer
	w := &printer{out: &out}
	w.samples(list[1:])
	require.Contains(t, out.String(), "rxe0/2: received 1000 B/s 0 packets/s, sent 0 B/s 10 packets/s (bytes counted by netdev eth0); retries +3\n")
}

func TestWatchStopsWhenAskedTo(t *testing.T) {
	text := run(t, "-watch", "-every", "1ms", "-n", "3")
	require.GreaterOrEqual(t, strings.Count(text, "\n"), 3)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, rdmainfo(ctx, []string{"-watch", "-every", "1h"}, &bytes.Buffer{}))
	require.Error(t, rdmainfo(t.Context(), []string{"-watch", "-every", "0s"}, &bytes.Buffer{}))
	require.Error(t, rdmainfo(t.Context(), []string{"-watch", "localhost:1"}, &bytes.Buffer{}))
}

func TestEachAbilityHasAName(t *testing.T) {
	names := make(map[string]bool)
	for bit := verbs.Cap(1); bit <= verbs.CapBlueFlame; bit <<= 1 {
		list := abilities(bit)
		require.Len(t, list, 1, "%#x", uint64(bit))
		require.False(t, names[list[0]], list[0])
		names[list[0]] = true
	}
	names = make(map[string]bool)
	for bit := verbs.ODPSend; bit <= verbs.ODPAtomicWrite; bit <<= 1 {
		list := operations(bit)
		require.Len(t, list, 1, "%#x", uint32(bit))
		require.False(t, names[list[0]], list[0])
		names[list[0]] = true
	}
}

func TestReportSaysForWhatMemoryIsPagedIn(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the software HCA needs Linux")
	}
	require.Contains(t, run(t), "\n  pages memory in on demand for UD: send recv srq-recv\n")
	list := onDemand(&verbs.ODPCaps{RC: verbs.ODPSend | verbs.ODPRead, XRC: verbs.ODPAtomic})
	require.Equal(t, []paging{{"RC", []string{"send", "read"}}, {"XRC", []string{"atomics"}}}, list)
}
