package cmtest

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// Datagrams is a UD QP with memory for what it receives and sends.
type Datagrams struct {
	*Side
	QP *verbs.QP
	mr *verbs.MR
	t  testing.TB

	early []verbs.WC // completions that nobody has waited for yet
}

const (
	datagramRecvs = 16
	datagramSize  = verbs.GRHSize + 256
)

// OpenDatagrams makes a UD QP in RESET. The caller closes it.
func OpenDatagrams(device string) (*Datagrams, error) {
	side, err := OpenSide(device)
	if err != nil {
		return nil, err
	}
	d := &Datagrams{Side: side}
	if d.mr, err = d.Pd.AllocMR((datagramRecvs+1)*datagramSize, verbs.AccessLocalWrite, verbs.MROptions{}); err != nil {
		return nil, err
	}
	d.QP, err = d.Pd.CreateQP(verbs.QPInitAttr{
		Type: verbs.QPTypeUD, SendCQ: d.cq, RecvCQ: d.cq,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: datagramRecvs, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	return d, err
}

// Close closes the QP, its memory and its device.
func (d *Datagrams) Close() error {
	return errors.Join(d.QP.Close(), d.mr.Close(), d.Side.Close())
}

// NewDatagrams makes a UD QP in RESET on the device of the fabric, until the test ends.
func (f *Fabric) NewDatagrams(t testing.TB) *Datagrams {
	t.Helper()
	d, err := OpenDatagrams(f.Device)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	d.t = t
	return d
}

// Receive posts all receives, as Prepare.
func (d *Datagrams) Receive(qp *verbs.QP) error {
	for id := range datagramRecvs {
		if err := d.receive(uint64(id)); err != nil {
			return err
		}
	}
	return nil
}

func (d *Datagrams) receive(id uint64) error {
	_, err := d.QP.PostRecv([]verbs.RecvWR{{ID: id, SGL: []verbs.SGE{d.mr.SGE(int(id)*datagramSize, datagramSize)}}})
	return err
}

// Param begins with all receives posted, and with private data.
func (d *Datagrams) Param(private string) rcm.DatagramParam {
	return rcm.DatagramParam{PrivateData: []byte(private), Prepare: d.Receive}
}

// Group begins with all receives posted.
func (d *Datagrams) Group() rcm.JoinParam { return rcm.JoinParam{Prepare: d.Receive} }

// SendTo sends a message, and its QP number as immediate data, until it is on its way.
func (d *Datagrams) SendTo(to rcm.Destination, message string) {
	d.t.Helper()
	ah, err := d.Pd.CreateAH(to.AV)
	require.NoError(d.t, err)
	require.NoError(d.t, d.send(verbs.Datagram{AH: ah, QPN: to.QPN, QKey: to.QKey}, message))
}

// Answer sends a message to where another one came from.
func (d *Datagrams) Answer(m Message, message string) error {
	ah, err := d.Pd.CreateReplyAH(&m.wc, m.received, 1)
	if err != nil {
		return err
	}
	return d.send(verbs.Datagram{AH: ah, QPN: m.wc.SrcQPN, QKey: rcm.DatagramQKey}, message)
}

func (d *Datagrams) send(to verbs.Datagram, message string) error {
	const at = datagramRecvs * datagramSize
	copy(d.mr.Bytes()[at:], message)
	_, err := d.QP.PostSend([]verbs.SendWR{{
		Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled, SGL: []verbs.SGE{d.mr.SGE(at, len(message))}, Imm: d.QP.Num(), Datagram: &to,
	}})
	if err == nil {
		_, err = d.nextOf(verbs.WCSend)
	}
	return errors.Join(err, to.AH.Close())
}

// Message is one that was received.
type Message struct {
	Text     string
	Imm      uint32
	wc       verbs.WC
	received []byte
}

// Next waits for a message, and makes room for another one.
func (d *Datagrams) Next() Message {
	d.t.Helper()
	m, err := d.AwaitMessage()
	require.NoError(d.t, err)
	return m
}

// AwaitMessage is Next outside of tests.
func (d *Datagrams) AwaitMessage() (Message, error) {
	wc, err := d.nextOf(verbs.WCRecv)
	if err != nil {
		return Message{}, err
	}
	return d.take(wc)
}

// Arrived returns a message that is there.
func (d *Datagrams) Arrived() (m Message, ok bool) {
	d.t.Helper()
	wc, ok := d.earlyOf(verbs.WCRecv)
	if !ok {
		var wcs [1]verbs.WC
		n, err := d.cq.Poll(wcs[:])
		require.NoError(d.t, err)
		if n == 0 {
			return m, false
		}
		wc = wcs[0]
	}
	require.Equal(d.t, verbs.WCRecv, wc.Opcode)
	m, err := d.take(wc)
	require.NoError(d.t, err)
	return m, true
}

func (d *Datagrams) take(wc verbs.WC) (Message, error) {
	all := append([]byte(nil), d.mr.Bytes()[wc.ID*datagramSize:][:wc.ByteLen]...)
	return Message{Text: string(all[verbs.GRHSize:]), Imm: wc.Imm, wc: wc, received: all}, d.receive(wc.ID)
}

// nextOf waits for a completion. A message may come before the send that led to it is complete.
func (d *Datagrams) nextOf(op verbs.WCOpcode) (verbs.WC, error) {
	if wc, ok := d.earlyOf(op); ok {
		return wc, nil
	}
	for {
		wc, err := d.Side.Next()
		if err != nil || wc.Opcode == op {
			return wc, err
		}
		d.early = append(d.early, wc)
	}
}

func (d *Datagrams) earlyOf(op verbs.WCOpcode) (verbs.WC, bool) {
	for i, wc := range d.early {
		if wc.Opcode == op {
			d.early = append(d.early[:i:i], d.early[i+1:]...)
			return wc, true
		}
	}
	return verbs.WC{}, false
}

// OverDatagrams runs a test over each of some fabrics whose devices have UD QPs. Of the
// others it asks that they say so.
func OverDatagrams(t *testing.T, fabrics []*Fabric, test func(t *testing.T, f *Fabric)) {
	OverAll(t, fabrics, func(t *testing.T, f *Fabric) {
		if !f.IWARP {
			test(t, f)
			return
		}
		_, err := f.ListenDatagram(f.Addr(t), rcm.ListenConfig{})
		require.ErrorIs(t, err, errors.ErrUnsupported)
		_, err = f.ResolveDatagram(Within(t), f.Addr(t))
		require.ErrorIs(t, err, errors.ErrUnsupported)
		_, err = f.ResolveGroup(Within(t), f.GroupAddr(t))
		require.ErrorIs(t, err, errors.ErrUnsupported)
		t.Skip("iWARP has no datagrams")
	})
}

// MustListenDatagram listens until the test ends.
func (f *Fabric) MustListenDatagram(t testing.TB, addr netip.AddrPort, cfg rcm.ListenConfig) rcm.DatagramListener {
	t.Helper()
	l, err := f.ListenDatagram(addr, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// MustResolveDatagram returns a route to addr.
func (f *Fabric) MustResolveDatagram(t testing.TB, addr netip.AddrPort) rcm.DatagramRoute {
	t.Helper()
	r, err := f.ResolveDatagram(Within(t), addr)
	require.NoError(t, err)
	return r
}

// GroupAddr is a multicast group of the host's version of IP, which no other test has: on the
// software HCA all processes of a user are in one network.
func (f *Fabric) GroupAddr(t testing.TB) netip.Addr {
	t.Helper()
	if !f.group.IsValid() {
		port := FreePort(t)
		high, low := byte(port>>8), byte(port)
		if f.Host.Is4() {
			f.group = netip.AddrFrom4([4]byte{239, 1, high, low})
		} else {
			f.group = netip.AddrFrom16([16]byte{0: 0xff, 1: 0x0e, 14: high, 15: low})
		}
	}
	return f.group
}

// MustJoin makes a QP a member of the group of GroupAddr until the test ends.
func (f *Fabric) MustJoin(d *Datagrams, p rcm.JoinParam) rcm.Membership {
	d.t.Helper()
	r, err := f.ResolveGroup(Within(d.t), f.GroupAddr(d.t))
	require.NoError(d.t, err)
	m, err := r.Join(Within(d.t), d.QP, p)
	if errors.Is(err, errors.ErrUnsupported) && f.Kernel && !f.Host.Is4() {
		d.t.Skipf("%s has no groups of IPv6: %v", f.Device, err)
	}
	require.NoError(d.t, err)
	d.t.Cleanup(func() { require.NoError(d.t, m.Leave()) })
	return m
}
