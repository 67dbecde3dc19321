//go:build amd64 || arm64

// Package modeltest runs tests on the model of RDMA devices.
//
// A test that is to run on a device begins with
//
//	if !modeltest.On(t, modeltest.Config{}) {
//		return
//	}
//
// and TestMain of its package with [Main]. On starts the test's program anew for each host of
// the configuration, with this test alone, so that what follows runs there: /dev/infiniband,
// /sys/class/infiniband and netlink are those of a host with one device, mlx5_0.
// The devices are connected, and tests on two hosts learn of each other by [Exchange].
//
// In the first process On waits for the others and returns false. The test fails there if it
// fails on a host, or if the driver has done what a device cannot make sense of
// ([fabric.Fabric.Violations]). Everything is one process tree: a debugger or the race detector
// works as always. What else a test wants of the hosts, for instance a C program at one of
// them, it does itself with packages frame, fabric and mlx5.
package modeltest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/skip"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/mlx5"
)

// A Config says on what a test runs.
type Config struct {
	// Device is what each host has; nil is an mlx5.Config{}.
	Device fabric.Kind
	// Hosts is how many there are; 0 means 1.
	Hosts int
	// OneDevice has one host with one device run all programs that Hosts counts.
	OneDevice bool
	// WriteOnly makes the kernel of the hosts one without ioctl for uverbs.
	WriteOnly bool
	// Network gives the hosts a network namespace, in which their addresses are 10.77.0.1 and
	// fd77::1 and on, and TCP reaches them. Otherwise they are 127.0.0.1 and on, which
	// package rcm does not take.
	Network bool
	// Hostile, if it is not 0, makes the devices awkward by this seed. See [fabric.Fabric].
	// RAMJET_MODEL_HOSTILE is a seed for all tests, also for those that have none of their own.
	Hostile uint64
	// WQE, if not nil, is given each WQE of a send queue before it is executed. It is called
	// in the first process.
	WQE func(wqe []byte)
	// BlueFlame has the test fail if no WQE was written to a register.
	BlueFlame bool
	// While, if not nil, is called in the first process when the hosts have been started, with
	// their devices. It ends with its context, which is done when the hosts have ended.
	While func(ctx context.Context, devices []fabric.Device)
	// Env is added to the environment of the hosts' programs.
	Env []string
}

const (
	hostVariable     = "RAMJET_MODEL_HOST"     // the number of the host, from 0
	exchangeVariable = "RAMJET_MODEL_EXCHANGE" // where hosts 0 and 1 meet
	networkVariable  = "RAMJET_MODEL_NETWORK"  // the process is in a network namespace
)

// isolated says that the process is in a network namespace of the test's.
func isolated() bool { return os.Getenv(networkVariable) != "" }

// Main is called first in TestMain: the process may be one that is to become a program on a host.
func Main() {
	frame.Main()
	if !isolated() || Host() >= 0 {
		return
	}
	const most = 16 // hosts
	if err := frame.AddAddresses(most); err != nil {
		fmt.Fprintf(os.Stderr, "modeltest: %v\n", err)
		os.Exit(1)
	}
}

// runIsolated runs the test in a network namespace.
func runIsolated(t *testing.T) {
	t.Helper()
	args := arguments(t)
	c := frame.Isolated(args[1:]...)
	var output bytes.Buffer
	c.Env = append(os.Environ(), networkVariable+"=1")
	c.Stdout, c.Stderr = &output, &output
	if err := c.Start(); err != nil {
		skip.Because(t, fmt.Errorf("a network namespace: %w", err))
		return
	}
	defer context.AfterFunc(t.Context(), func() { _ = c.Process.Kill() })()
	judge(t, "in the network namespace", c.Wait(), &output)
}

// Host returns the number of the host on which the process runs, from 0, or -1 if it is none of the
// model.
func Host() int {
	n, err := strconv.Atoi(os.Getenv(hostVariable))
	if err != nil {
		return -1
	}
	return n
}

// On reports whether this process runs on a host of the model. If not, it runs the test
// there, and returns when that has ended. Where that is not possible, the test is skipped.
func On(t *testing.T, config Config) bool {
	t.Helper()
	if Host() >= 0 {
		return true
	}
	if err := frame.Supported(); err != nil {
		skip.Because(t, err)
	}
	if config.Network && !isolated() {
		runIsolated(t)
		return false
	}
	subnet := Fabric(t, config)
	if config.Device == nil {
		config.Device = mlx5.Config{}
	}
	meeting := filepath.Join(t.TempDir(), "exchange")
	programs := make([]*frame.Program, max(config.Hosts, 1))
	outputs := make([]bytes.Buffer, len(programs))
	devices := make([]fabric.Device, len(programs))
	for i := range programs {
		if i > 0 && config.OneDevice {
			devices[i] = devices[0]
		} else {
			devices[i] = config.Device.NewDevice(subnet)
		}
		host := devices[i].Host()
		host.WriteOnly = config.WriteOnly
		env := append([]string{hostVariable + "=" + strconv.Itoa(i), exchangeVariable + "=" + meeting}, config.Env...)
		p, err := host.Start(arguments(t), env, &outputs[i], &outputs[i])
		if err != nil {
			t.Errorf("%v: %s", err, &outputs[i])
			break
		}
		programs[i] = p
		defer context.AfterFunc(t.Context(), p.Kill)()
	}
	if config.While != nil && !t.Failed() {
		ctx, cancel := context.WithCancel(t.Context())
		var while sync.WaitGroup
		while.Go(func() { config.While(ctx, devices) })
		defer while.Wait() // ends with ctx
		defer cancel()
	}
	await(t, programs, outputs)
	if config.BlueFlame && subnet.Stats().BlueFlames == 0 {
		t.Errorf("no WQE was written to a register, of %d", subnet.Stats().Requests)
	}
	return false
}

// await waits for the end of all programs. One that fails ends the others, which may wait for it.
func await(t *testing.T, programs []*frame.Program, outputs []bytes.Buffer) {
	t.Helper()
	type end struct {
		host int
		err  error
	}
	ends := make(chan end, len(programs))
	running := 0
	for i, p := range programs {
		if p != nil {
			running++
			go func() { ends <- end{i, p.Wait()} }()
		}
	}
	for killed := false; running > 0; running-- {
		e := <-ends // each program ends: it has a timeout, and is killed with the test
		if killed {
			t.Logf("host %d, which was ended then:\n%s", e.host, &outputs[e.host])
			continue
		}
		judge(t, fmt.Sprintf("on host %d", e.host), e.err, &outputs[e.host])
		if t.Failed() {
			killed = true
			for _, p := range programs {
				if p != nil {
					p.Kill()
				}
			}
		}
	}
}

// Fabric returns one whose hardware runs until the test ends. The test fails if
// there are violations.
func Fabric(t *testing.T, config Config) *fabric.Fabric {
	t.Helper()
	subnet := fabric.New()
	subnet.WQE = config.WQE
	if isolated() {
		subnet.Addresses = frame.NamespaceAddresses()
	}
	subnet.Hostile = hostile(config.Hostile)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { subnet.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait() // ends with the context
		for _, v := range subnet.Violations() {
			t.Errorf("the driver violates the format: %s", v)
		}
	})
	return subnet
}

const hostileVariable = "RAMJET_MODEL_HOSTILE" // a seed

// hostile returns the numbers of a seed, or of that of the environment, or nil if there is none.
func hostile(seed uint64) *rand.Rand {
	if text := os.Getenv(hostileVariable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			panic(fmt.Sprintf("%s is no number: %v", hostileVariable, err))
		}
	}
	if seed == 0 {
		return nil
	}
	return rand.New(rand.NewPCG(seed, 0))
}

// arguments are those of a program that runs this test alone, not longer than this one may.
func arguments(t *testing.T) []string {
	var pattern []string
	for name := range strings.SplitSeq(t.Name(), "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(name)+"$")
	}
	args := []string{os.Args[0], "-test.v", "-test.count=1", "-test.run=" + strings.Join(pattern, "/")}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	if deadline, ok := t.Deadline(); ok {
		const spare = time.Second // to say what went wrong
		args = append(args, fmt.Sprintf("-test.timeout=%v", max(time.Until(deadline)-spare, spare)))
	}
	return args
}

// judge fails or skips the test if it has been so on a host.
func judge(t *testing.T, where string, err error, output *bytes.Buffer) {
	t.Helper()
	out := output.String()
	switch {
	case err != nil:
		t.Errorf("%s: %v\n%s", where, err, out)
	case strings.Contains(out, "--- SKIP: "+t.Name()+" "):
		t.Skipf("%s:\n%s", where, out)
	case !strings.Contains(out, "--- PASS: "+t.Name()+" "):
		t.Errorf("%s the test has not run:\n%s", where, out)
	case testing.Verbose():
		t.Logf("%s:\n%s", where, out)
	}
}

var meeting = sync.OnceValues(func() (net.Conn, error) {
	path := os.Getenv(exchangeVariable)
	if Host() != 0 {
		return dial(path)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.Accept()
})

// dial waits for host 0 to listen.
func dial(path string) (net.Conn, error) {
	const most = 30 * time.Second
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		c, err := net.Dial("unix", path)
		if err == nil || time.Since(start) > most {
			return c, err
		}
	}
}

// Exchange sends bytes to the other one of two hosts, and returns what that sends. Each of them
// waits for the other.
func Exchange(t *testing.T, mine []byte) (theirs []byte) {
	t.Helper()
	c, err := meeting()
	if err != nil {
		t.Fatalf("meet the other host: %v", err)
	}
	message := append(binary.BigEndian.AppendUint32(nil, uint32(len(mine))), mine...)
	if _, err = c.Write(message); err == nil {
		var size [4]byte
		if _, err = io.ReadFull(c, size[:]); err == nil {
			theirs = make([]byte, binary.BigEndian.Uint32(size[:]))
			_, err = io.ReadFull(c, theirs)
		}
	}
	if err != nil {
		t.Fatalf("the other host: %v", err)
	}
	return theirs
}
