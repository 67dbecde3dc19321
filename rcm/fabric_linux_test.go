package rcm

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	_ "github.com/seed-b9b531af/ramjet/verbs/soft"
	_ "github.com/seed-b9b531af/ramjet/verbs/uverbs"
	"github.com/stretchr/testify/require"
)

// testFabric is a fabric on one device, and an address of this host that it
// reaches. The tests that are about connections as such run over all of them.
type testFabric struct {
	Fabric
	device string
	host   netip.Addr
	// kernel says that rdma_cm is behind it, iwarp that TCP is, too.
	kernel, iwarp bool
}

// devicesVariable names the RDMA devices that tests must find.
const devicesVariable = "RAMJET_DEVICES"

const howToFindDevices = "needs RDMA devices: go test -exec GUEST ./rcm, with GUEST built from verbs/guest"

// patience is for what must happen; no test that succeeds waits that long.
const patience = time.Minute

// within returns a context that ends with the test, or after patience.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// await receives from a channel, or ends the test after patience.
func await[T any](t testing.TB, c <-chan T) (v T) {
	t.Helper()
	select { // ends with what the test waits for, or after patience
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("nothing came within %v", patience)
	}
	return v
}

// overFabrics runs a test over the software HCA or, where devicesVariable names
// devices, over each of those.
func overFabrics(t *testing.T, test func(t *testing.T, f *testFabric)) {
	if os.Getenv(devicesVariable) != "" {
		overDevices(t, test)
		return
	}
	for _, host := range []string{"127.0.0.1", "::1"} {
		f := &testFabric{Fabric: Soft(), device: "soft0", host: netip.MustParseAddr(host)}
		t.Run(f.title(), func(t *testing.T) { test(t, f) })
	}
}

// overDevices runs a test over the devices that devicesVariable names.
func overDevices(t *testing.T, test func(t *testing.T, f *testFabric)) {
	if os.Getenv(devicesVariable) == "" {
		t.Run("devices", func(t *testing.T) { t.Skip(howToFindDevices) })
		return
	}
	for _, f := range kernelFabrics(t) {
		t.Run(f.title(), func(t *testing.T) { test(t, f) })
	}
}

// onSoft is for tests of the software HCA's own protocol.
func onSoft() *testFabric {
	return &testFabric{Fabric: Soft(), device: "soft0", host: netip.MustParseAddr("127.0.0.1")}
}

func (f *testFabric) title() string {
	if f.host.Is4() {
		return f.device + " IPv4"
	}
	return f.device + " IPv6"
}

// kernelFabrics returns two fabrics for each device, one for IPv4 and one for
// IPv6.
func kernelFabrics(t testing.TB) []*testFabric {
	t.Helper()
	var list []*testFabric
	for _, name := range strings.Split(os.Getenv(devicesVariable), ",") {
		list = append(list, kernelFabricsOn(t, name)...)
	}
	return list
}

func kernelFabricsOn(t testing.TB, name string) []*testFabric {
	t.Helper()
	var list []*testFabric
	addrs, err := rdmahost.Addrs()
	require.NoError(t, err)
	for _, host := range addrs {
		d, err := deviceAt(host)
		if err != nil || d.name != name || host.IsLinkLocalUnicast() {
			continue
		}
		if !slices.ContainsFunc(list, func(f *testFabric) bool { return f.host.Is4() == host.Is4() }) {
			list = append(list, &testFabric{
				Fabric: KernelOn(name), device: name, host: host, kernel: true, iwarp: d.transport == verbs.TransportIWARP,
			})
		}
	}
	require.Len(t, list, 2, "addresses of device %s", name)
	slices.SortFunc(list, func(a, b *testFabric) int { return cmp.Compare(a.host.BitLen(), b.host.BitLen()) })
	return list
}

// fabricOn returns the fabric of a device by its name.
func fabricOn(device string) Fabric {
	if strings.HasPrefix(device, "soft") {
		return SoftOn(device)
	}
	return KernelOn(device)
}

// addr returns an address that nobody listens on.
func (f *testFabric) addr(t testing.TB) netip.AddrPort {
	t.Helper()
	return netip.AddrPortFrom(f.host, freePort(t))
}

func (f *testFabric) listen(t testing.TB, addr netip.AddrPort, cfg ListenConfig) Listener {
	t.Helper()
	l, err := f.Listen(addr, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

func (f *testFabric) resolve(t testing.TB, addr netip.AddrPort) Route {
	t.Helper()
	r, err := f.Resolve(within(t), addr)
	require.NoError(t, err)
	return r
}

// side is a device with what one QP needs.
type side struct {
	dev   *verbs.Context
	pd    *verbs.PD
	ch    *verbs.CompChannel
	cq    *verbs.CQ
	mr    *verbs.MR
	posts uint64 // receives posted
	early int    // receives completed that nobody has waited for yet
}

func (f *testFabric) newSide(t testing.TB) *side {
	t.Helper()
	s, err := openSide(f.device)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.close()) })
	return s
}

func openSide(device string) (*side, error) {
	var s side
	var err error
	if s.dev, err = verbs.Open(device); err != nil {
		return nil, err
	}
	if s.pd, err = s.dev.AllocPD(); err != nil {
		return nil, err
	}
	if s.ch, err = s.dev.CreateCompChannel(); err != nil {
		return nil, err
	}
	if s.cq, err = s.dev.CreateCQ(verbs.CQAttr{CQE: 256}, s.ch); err != nil {
		return nil, err
	}
	s.mr, err = s.pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, verbs.MROptions{})
	return &s, err
}

func (s *side) close() error {
	return errors.Join(s.mr.Close(), s.cq.Close(), s.ch.Close(), s.pd.Close(), s.dev.Close())
}

func (s *side) newQP() (*verbs.QP, error) {
	return s.pd.CreateQP(verbs.QPInitAttr{
		Type: verbs.QPTypeRC, SendCQ: s.cq, RecvCQ: s.cq,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64},
	})
}

func (s *side) qp(t testing.TB) *verbs.QP {
	t.Helper()
	qp, err := s.newQP()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, qp.Close()) })
	return qp
}

// receive posts a receive for a number, as ConnParam.Prepare.
func (s *side) receive(qp *verbs.QP) error {
	_, err := qp.PostRecv([]verbs.RecvWR{{ID: s.posts, SGL: []verbs.SGE{s.mr.SGE(int(s.posts%1024)*4, 4)}}})
	s.posts++
	return err
}

// tell sends the peer a number.
func tell(qp *verbs.QP, number uint32) error {
	b := binary.BigEndian.AppendUint32(nil, number)
	_, err := qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: [][]byte{b}}})
	return err
}

// hear waits for a number of the peer.
func (s *side) hear() (number uint32, wc verbs.WC, err error) {
	if wc, err = s.next(); err != nil {
		return 0, wc, err
	}
	return binary.BigEndian.Uint32(s.mr.Bytes()[wc.ID%1024*4:]), wc, nil
}

// next waits for a successful completion; the wait ends with it, an error or
// after patience.
func (s *side) next() (verbs.WC, error) {
	for deadline := time.Now().Add(patience); ; {
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
	addr             netip.AddrPort
	l                Listener
	dialer, acceptor *side
	dialed, accepted *verbs.QP
	near, far        Conn // of the dialer, of the acceptor
}

func (f *testFabric) newPair(t testing.TB, dial, accept ConnParam) *pair {
	t.Helper()
	p := &pair{addr: f.addr(t), dialer: f.newSide(t), acceptor: f.newSide(t)}
	p.l = f.listen(t, p.addr, ListenConfig{})
	p.dialed, p.accepted = p.dialer.qp(t), p.acceptor.qp(t)
	dial.Prepare, accept.Prepare = p.dialer.receive, p.acceptor.receive
	accepted := make(chan error, 1)
	go func() {
		r, err := p.l.Accept(within(t))
		if err == nil {
			p.far, err = r.Accept(within(t), p.accepted, accept)
		}
		accepted <- err
	}()
	var err error
	p.near, err = f.resolve(t, p.addr).Connect(within(t), p.dialed, dial)
	require.NoError(t, err)
	require.NoError(t, await(t, accepted)) // ends with the handshake
	t.Cleanup(func() {
		require.NoError(t, p.near.Disconnect())
		require.NoError(t, p.far.Disconnect())
	})
	return p
}

// dialAsync connects a fresh QP and gives the outcome.
func (f *testFabric) dialAsync(t testing.TB, ctx context.Context, addr netip.AddrPort, p ConnParam) <-chan error {
	t.Helper()
	qp := f.newSide(t).qp(t)
	r := f.resolve(t, addr)
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

// carried returns private data without what the fabric may append to it.
func (f *testFabric) carried(t testing.TB, private []byte, want string) {
	t.Helper()
	require.GreaterOrEqual(t, len(private), len(want))
	require.Equal(t, want, string(private[:len(want)]))
	for _, b := range private[len(want):] {
		require.True(t, f.kernel && b == 0, "%q is followed by %v", want, private[len(want):])
	}
}
