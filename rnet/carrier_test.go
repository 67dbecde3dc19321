package rnet

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/testhost"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/mux"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
)

// carrier is one way for connections to be carried. Most tests run over each.
type carrier struct {
	name      string
	transport Transport
	profile   Profile
	device    string // of the software HCA, where it is not the usual one
	host      string // an address of this host, empty for 127.0.0.1
	dedicated bool
	limits    Limits
}

var (
	overTCP  = carrier{name: "tcp", transport: TCP}
	overSoft = carrier{name: "soft", transport: Soft}
	// overBounceBuffer runs on a device with little inline data, as hardware has it:
	// what is sent goes through the bounce buffer.
	overBounceBuffer = carrier{name: "soft-noinline", transport: Soft, device: soft.TestDeviceName}
	// overEmulation runs on a device without immediates, as iWARP has it.
	overEmulation = carrier{name: "soft-noimm", transport: Soft, device: soft.TestNoImmName}
	// overNarrow has the smallest ring and window: all kinds of credit run
	// out all the time.
	overNarrow = carrier{name: "soft-narrow", transport: Soft, limits: Limits{RingSize: minRingSize, Window: mux.MinWindow}}
)

// ownCarriers are those of the software HCA.
var ownCarriers = []carrier{
	overSoft,
	carrier{name: "soft-latency", transport: Soft, profile: Latency},
	carrier{name: "soft-efficient", transport: Soft, profile: Efficient},
	carrier{name: "soft-dedicated", transport: Soft, dedicated: true},
	overBounceBuffer,
	overEmulation,
	overNarrow,
}

// softCarriers are those on which a connection is a *Conn.
var softCarriers = orKernel(ownCarriers...)

var allCarriers = orKernel(append([]carrier{overTCP}, softCarriers...)...)

// orKernel returns list, or what replaces it in the virtual machine.
func orKernel(list ...carrier) []carrier {
	if kernel := kernelCarriers(); kernel != nil {
		return kernel
	}
	return list
}

// kernelCarriers are the carriers of the devices of the kernel that the machine has for tests.
// Where it has some, the tests that run over all carriers run over these instead; the others were
// run elsewhere.
func kernelCarriers() (list []carrier) {
	for _, d := range testhost.Devices() {
		list = append(list, carrier{name: d.Name, transport: RDMA, host: d.Host})
	}
	return list
}

// anyPort is the address to listen on.
func (k carrier) anyPort() string { return net.JoinHostPort(cmp.Or(k.host, "127.0.0.1"), "0") }

// carrierNamed is how a child process gets the carrier of its parent.
func carrierNamed(name string) (carrier, error) {
	if name == "auto" {
		return carrier{name: name}, nil
	}
	for _, k := range slices.Concat([]carrier{overTCP}, ownCarriers, kernelCarriers()) {
		if k.name == name {
			return k, nil
		}
	}
	return carrier{}, fmt.Errorf("no carrier %q", name)
}

var ctxBackground = context.Background()

// over runs f as a subtest for each carrier.
func over(t *testing.T, carriers []carrier, f func(t *testing.T, k carrier)) {
	for _, k := range carriers {
		t.Run(k.name, func(t *testing.T) { f(t, k) })
	}
}

func (k carrier) dialer() *Dialer {
	d := patient()
	d.Transport, d.Profile, d.Dedicated, d.Limits = k.transport, k.profile, k.dedicated, k.limits
	return d
}

func (k carrier) listenConfig() *ListenConfig {
	return &ListenConfig{Transport: k.transport, Profile: k.profile, Limits: k.limits}
}

// install makes dials and listeners of this process use the carrier's device,
// and returns what undoes it. No two carriers can be installed at once.
func (k carrier) install() (undo func()) {
	if k.device == "" {
		return func() {}
	}
	soft.EnableTestDevice()
	usual := fabrics
	fabrics = []fabric{{fallback.Soft, softcm.New(softcm.Config{Device: k.device}), nil}}
	return func() { fabrics = usual }
}

// patient dials whatever the machine does beside it.
func patient() *Dialer { return &Dialer{HeadStart: hang.Time} }

// listen makes a listener on the loopback address that is closed with the
// test.
func (k carrier) listen(t testing.TB) net.Listener {
	t.Helper()
	return k.listenAt(t, k.anyPort())
}

// listenAt is listen at an address.
func (k carrier) listenAt(t testing.TB, address string) net.Listener {
	t.Helper()
	if k.transport == Soft && runtime.GOOS != "linux" {
		t.Skip("the software HCA needs Linux")
	}
	t.Cleanup(k.install())
	ln, err := k.listenConfig().Listen(ctxBackground, "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln
}

// pair makes a connection through a listener of its own.
func (k carrier) pair(t testing.TB) (dialed, accepted net.Conn) {
	t.Helper()
	return k.connect(t, k.listen(t))
}

// connect makes one more connection through ln. Both ends are closed with the
// test.
func (k carrier) connect(t testing.TB, ln net.Listener) (dialed, accepted net.Conn) {
	t.Helper()
	dialed, err := k.dialer().Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	accepted, err = ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() {
		dialed.Close()
		accepted.Close()
	})
	return dialed, accepted
}

// streams is pair for the carriers whose connections are Conns.
func (k carrier) streams(t testing.TB) (dialed, accepted *Conn) {
	t.Helper()
	d, a := k.pair(t)
	require.IsType(t, (*Conn)(nil), d)
	require.IsType(t, (*Conn)(nil), a)
	return d.(*Conn), a.(*Conn)
}

func init() { roles.Add("target", target) }

// target listens, says where, and serves. Its argument is the carrier.
func target(args []string) error {
	k, err := carrierNamed(args[0])
	if err != nil {
		return err
	}
	defer k.install()()
	ln, err := k.listenConfig().Listen(ctxBackground, "tcp", k.anyPort())
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	return traffic.Serve(ln)
}
