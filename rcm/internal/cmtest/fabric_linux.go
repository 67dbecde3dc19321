package cmtest

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	_ "github.com/seed-b9b531af/ramjet/verbs/soft"
	_ "github.com/seed-b9b531af/ramjet/verbs/uverbs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Fabric is a fabric on one device, and an address of this host that it
// reaches. The tests that are about connections as such run over all of them.
type Fabric struct {
	rcm.Fabric
	Device string
	Host   netip.Addr
	// Kernel says that rdma_cm is behind it, IWARP that TCP is, too.
	Kernel, IWARP bool
	group         netip.Addr // that of GroupAddr, once it was asked for
}

// devicesVariable names the RDMA devices that tests must find.
const devicesVariable = "RAMJET_DEVICES"

// HowToFindDevices is why tests of kernel devices are skipped.
const HowToFindDevices = "needs RDMA devices: go test -exec GUEST ./rcm, with GUEST built from verbs/guest"

// Timeout is for what must happen; no test that succeeds waits that long.
const Timeout = time.Minute

// Within returns a context that ends with the test, or after Timeout.
func Within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), Timeout)
	t.Cleanup(cancel)
	return ctx
}

// Await receives from a channel, or ends the test after Timeout.
func Await[T any](t testing.TB, c <-chan T) (v T) {
	t.Helper()
	select { // ends with what the test waits for, or after patience
	case v = <-c:
	case <-time.After(Timeout):
		t.Fatalf("nothing came within %v", Timeout)
	}
	return v
}

// Title is the name for a subtest over the fabric.
func (f *Fabric) Title() string {
	if f.Host.Is4() {
		return f.Device + " IPv4"
	}
	return f.Device + " IPv6"
}

// Addr returns an address that nobody listens on.
func (f *Fabric) Addr(t testing.TB) netip.AddrPort {
	t.Helper()
	return netip.AddrPortFrom(f.Host, FreePort(t))
}

// MustListen listens until the test ends.
func (f *Fabric) MustListen(t testing.TB, addr netip.AddrPort, cfg rcm.ListenConfig) rcm.Listener {
	t.Helper()
	l, err := f.Listen(addr, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// MustResolve returns a route to addr.
func (f *Fabric) MustResolve(t testing.TB, addr netip.AddrPort) rcm.Route {
	t.Helper()
	r, err := f.Resolve(Within(t), addr)
	require.NoError(t, err)
	return r
}

// Side is a device with what one QP needs.
type Side struct {
	dev   *verbs.Context
	Pd    *verbs.PD
	ch    *verbs.CompChannel
	cq    *verbs.CQ
	mr    *verbs.MR
	posts uint64 // receives posted
	Early int    // receives completed that nobody has waited for yet
}

// NewSide opens the device of the fabric until the test ends.
func (f *Fabric) NewSide(t testing.TB) *Side {
	t.Helper()
	s, err := OpenSide(f.Device)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// OpenSide opens a device. The caller closes it.
func OpenSide(device string) (*Side, error) {
	var s Side
	var err error
	if s.dev, err = verbs.Open(device); err != nil {
		return nil, err
	}
	if s.Pd, err = s.dev.AllocPD(); err != nil {
		return nil, err
	}
	if s.ch, err = s.dev.CreateCompChannel(); err != nil {
		return nil, err
	}
	if s.cq, err = s.dev.CreateCQ(verbs.CQAttr{CQE: 256}, s.ch); err != nil {
		return nil, err
	}
	s.mr, err = s.Pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, verbs.MROptions{})
	return &s, err
}

// Close closes what OpenSide has made, but no QPs.
func (s *Side) Close() error {
	return errors.Join(s.mr.Close(), s.cq.Close(), s.ch.Close(), s.Pd.Close(), s.dev.Close())
}

// NewQP makes a QP, which the caller closes.
func (s *Side) NewQP() (*verbs.QP, error) { return s.NewQPOf(verbs.QPTypeRC) }

// NewQPOf is NewQP for any type.
func (s *Side) NewQPOf(typ verbs.QPType) (*verbs.QP, error) {
	return s.Pd.CreateQP(verbs.QPInitAttr{
		Type: typ, SendCQ: s.cq, RecvCQ: s.cq,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64},
	})
}

// QP makes a QP that is closed when the test ends.
func (s *Side) QP(t testing.TB) *verbs.QP {
	t.Helper()
	qp, err := s.NewQP()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, qp.Close()) })
	return qp
}

// Receive posts a receive for a number, as ConnParam.Prepare.
func (s *Side) Receive(qp *verbs.QP) error {
	_, err := qp.PostRecv([]verbs.RecvWR{{ID: s.posts, SGL: []verbs.SGE{s.mr.SGE(int(s.posts%1024)*4, 4)}}})
	s.posts++
	return err
}

// Tell sends the peer a number.
func Tell(qp *verbs.QP, number uint32) error {
	b := binary.BigEndian.AppendUint32(nil, number)
	_, err := qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{b}}})
	return err
}

// Await waits for a number of the peer.
func (s *Side) Await() (number uint32, wc verbs.WC, err error) {
	if wc, err = s.Next(); err != nil {
		return 0, wc, err
	}
	return binary.BigEndian.Uint32(s.mr.Bytes()[wc.ID%1024*4:]), wc, nil
}

// Next waits for a successful completion; the wait ends with it, an error or
// after Timeout.
func (s *Side) Next() (verbs.WC, error) {
	for deadline := time.Now().Add(Timeout); ; {
		var wcs [1]verbs.WC
		n, err := s.cq.Poll(wcs[:])
		if err == nil && n == 0 {
			if err = s.cq.Arm(false); err == nil {
				n, err = s.cq.Poll(wcs[:])
			}
		}
		if err == nil && n > 0 {
			return wcs[0], wcs[0].Err()
		}
		if err == nil {
			err = s.ch.Wait(deadline)
		}
		if err != nil {
			return verbs.WC{}, err
		}
	}
}

// pair is a connection of this process with itself.
type pair struct {
	Addr             netip.AddrPort
	L                rcm.Listener
	Dialer, Acceptor *Side
	Dialed, Accepted *verbs.QP
	Near, Far        rcm.Conn // of the dialer, of the acceptor
}

// NewPair connects two QPs of this process until the test ends.
func (f *Fabric) NewPair(t testing.TB, dial, accept rcm.ConnParam) *pair {
	t.Helper()
	p := &pair{Addr: f.Addr(t), Dialer: f.NewSide(t), Acceptor: f.NewSide(t)}
	p.L = f.MustListen(t, p.Addr, rcm.ListenConfig{})
	p.Dialed, p.Accepted = p.Dialer.QP(t), p.Acceptor.QP(t)
	dial.Prepare, accept.Prepare = p.Dialer.Receive, p.Acceptor.Receive
	accepted := make(chan error, 1)
	go func() {
		r, err := p.L.Accept(Within(t))
		if err == nil {
			p.Far, err = r.Accept(Within(t), p.Accepted, accept)
		}
		accepted <- err
	}()
	var err error
	p.Near, err = f.MustResolve(t, p.Addr).Connect(Within(t), p.Dialed, dial)
	require.NoError(t, err)
	require.NoError(t, Await(t, accepted)) // ends with the handshake
	t.Cleanup(func() {
		require.NoError(t, p.Near.Disconnect())
		require.NoError(t, p.Far.Disconnect())
	})
	return p
}

// DialAsync connects a fresh QP and gives the outcome.
func (f *Fabric) DialAsync(t testing.TB, ctx context.Context, addr netip.AddrPort, p rcm.ConnParam) <-chan error {
	t.Helper()
	qp := f.NewSide(t).QP(t)
	r := f.MustResolve(t, addr)
	done := make(chan error, 1)
	go func() {
		c, err := r.Connect(ctx, qp, p)
		if err == nil {
			c.Disconnect()
		} else if a, queryErr := qp.Query(); queryErr != nil || a.State != verbs.QPStateErr && a.State != verbs.QPStateReset {
			err = errors.Join(err, fmt.Errorf("QP is neither in RESET nor in ERR, but in %v: %v", a.State, queryErr))
		}
		done <- err
	}()
	return done
}

// Carried returns private data without what the fabric may append to it.
func Carried(f *Fabric, t testing.TB, private []byte, want string) {
	t.Helper()
	require.GreaterOrEqual(t, len(private), len(want))
	require.Equal(t, want, string(private[:len(want)]))
	for _, b := range private[len(want):] {
		require.True(t, f.Kernel && b == 0, "%q is followed by %v", want, private[len(want):])
	}
}

// OverAll runs a test over each of some fabrics.
func OverAll(t *testing.T, fabrics []*Fabric, test func(t *testing.T, f *Fabric)) {
	for _, f := range fabrics {
		t.Run(f.Title(), func(t *testing.T) { test(t, f) })
	}
}

// HaveDevices reports whether devicesVariable names devices.
func HaveDevices() bool { return os.Getenv(devicesVariable) != "" }

// FabricsOn returns two fabrics for each device that devicesVariable names, one for
// IPv4 and one for IPv6; open makes one that uses a device alone.
func FabricsOn(t testing.TB, open func(device string) rcm.Fabric) (list []*Fabric) {
	t.Helper()
	addrs, err := rdmahost.Addrs()
	require.NoError(t, err)
	for _, device := range strings.Split(os.Getenv(devicesVariable), ",") {
		transport, err := rdmahost.PortTransport(device, 1)
		require.NoError(t, err)
		var found []*Fabric
		for _, host := range addrs {
			f := &Fabric{Fabric: open(device), Device: device, Host: host, Kernel: true, IWARP: transport == verbs.TransportIWARP}
			if host.IsLinkLocalUnicast() || slices.ContainsFunc(found, func(f *Fabric) bool { return f.Host.Is4() == host.Is4() }) {
				continue
			}
			// A fabric listens on its own device's addresses only.
			l, err := f.Listen(netip.AddrPortFrom(host, FreePort(t)), rcm.ListenConfig{})
			if errors.Is(err, rcm.ErrNoRoute) {
				continue
			}
			require.NoError(t, err)
			require.NoError(t, l.Close())
			found = append(found, f)
		}
		require.Len(t, found, 2, "addresses of device %s", device)
		slices.SortFunc(found, func(a, b *Fabric) int { return cmp.Compare(a.Host.BitLen(), b.Host.BitLen()) })
		list = append(list, found...)
	}
	return list
}

// FreePort returns a port that nobody else on this host uses until the test
// is over, because its TCP listener holds it.
func FreePort(t testing.TB) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// At returns an address and a port.
func At(host string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(host), port)
}

// UseUpDescriptors leaves the process without a free descriptor until the
// function that it returns is called.
func UseUpDescriptors(t *testing.T) (giveBack func()) {
	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 128, Max: limit.Max}))
	var taken []int
	for {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			break
		}
		taken = append(taken, fd)
	}
	return func() {
		for _, fd := range taken {
			unix.Close(fd)
		}
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
	}
}

// Run runs a program that must succeed.
func Run(t testing.TB, line string) {
	t.Helper()
	words := strings.Fields(line)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	require.NoError(t, err, "%s: %s", line, out)
}
