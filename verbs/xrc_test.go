package verbs

import (
	"bytes"
	"encoding/hex"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// domains is a device with XRC, whose objects count what is made of them.
type domains struct {
	ContextDriver
	PDDriver
	CQDriver
	open, busy bool
	opened     uint32
	file       *os.File
}

func (d *domains) OpenXRCDomain(file *os.File) (XRCDomainDriver, error) {
	d.open, d.file = true, file
	return domain{d}, nil
}

func (*domains) QueryGIDs(uint8) ([]GIDEntry, error) { return nil, nil }

func (d *domains) CreateQP(attr *QPInitAttr, send, recv CQDriver, srq SRQDriver) (QPDriver, error) {
	if send == nil || send != recv || srq != nil {
		return nil, ErrInvalid
	}
	return endpoint{num: 5}, nil
}

type domain struct{ *domains }

func (d domain) CreateSRQ(PDDriver, CQDriver, *SRQAttr) (XRCSRQDriver, error) { return numbered{}, nil }
func (d domain) CreateQP() (QPDriver, error)                                  { return endpoint{num: 7}, nil }

func (d domain) OpenQP(num uint32) (QPDriver, error) {
	d.opened = num
	return endpoint{num: num}, nil
}

func (d domain) Close() error {
	if d.busy {
		return ErrBusy
	}
	d.open = false
	return nil
}

type numbered struct{ SRQDriver }

func (numbered) Num() uint32    { return 0x51 }
func (numbered) Destroy() error { return nil }

type endpoint struct {
	QPDriver
	num uint32
}

func (e endpoint) Num() uint32                      { return e.num }
func (endpoint) PostSend(wrs []SendWR) (int, error) { return len(wrs), nil }
func (endpoint) Destroy() error                     { return nil }

func (endpoint) Query() (QPAttr, error) {
	return QPAttr{State: QPStateRTS, PathMTU: MTU256, DestQPN: 9, SQPSN: 3}, nil
}

// withXRC is a device that has it, with a PD and a CQ.
func withXRC() (*Context, *domains, *PD, *CQ) {
	drv := &domains{}
	ctx := &Context{drv: drv, mrs: map[*MR]struct{}{}, srqs: map[SRQDriver]*SRQ{}, attr: DeviceAttr{
		Caps: CapXRC | CapSRQ | CapRead, MaxSRQWR: 8, MaxSRQSGE: 2, MaxQPWR: 8, MaxSGE: 2, MaxInline: 64,
	}}
	return ctx, drv, &PD{ctx: ctx, drv: drv}, &CQ{ctx: ctx, drv: drv}
}

func TestAnXRCDomainHasSRQsAndTargets(t *testing.T) {
	ctx, drv, pd, cq := withXRC()
	d, err := ctx.OpenXRCDomain(os.Stdin)
	require.NoError(t, err)
	require.Same(t, os.Stdin, drv.file)
	require.Same(t, ctx, d.Context())
	srq, err := d.CreateSRQ(pd, cq, SRQAttr{MaxWR: 4, MaxSGE: 1})
	require.NoError(t, err)
	require.EqualValues(t, 0x51, srq.Num())
	target, err := d.CreateQP()
	require.NoError(t, err)
	require.EqualValues(t, 7, target.Num())
	require.Nil(t, target.PD())
	require.Equal(t, QPTypeXRCTarget, target.Attr().Type)
	again, err := d.OpenQP(7)
	require.NoError(t, err)
	require.EqualValues(t, 7, drv.opened)
	initiator, err := pd.CreateQP(QPInitAttr{Type: QPTypeXRCInitiator, SendCQ: cq, Cap: QPCap{MaxSendWR: 4, MaxSendSGE: 1}})
	require.NoError(t, err)
	require.Equal(t, 5, ctx.Objects())

	_, err = target.PostSend([]SendWR{{Opcode: OpSend}})
	require.ErrorIs(t, err, ErrInvalid)
	for _, qp := range []*QP{target, initiator} {
		_, err = qp.PostRecv([]RecvWR{{}})
		require.ErrorIs(t, err, ErrInvalid)
	}

	drv.busy = true
	require.ErrorIs(t, d.Close(), ErrBusy)
	require.Equal(t, 5, ctx.Objects())
	drv.busy = false
	for _, o := range []interface{ Close() error }{target, again, initiator, srq, d} {
		require.NoError(t, o.Close())
	}
	require.Zero(t, ctx.Objects())
	require.False(t, drv.open)
}

func TestObjectsOfXRCAreCharged(t *testing.T) {
	ctx, _, pd, cq := withXRC()
	ctx.pool = &Pool{}
	ctx.pool.SetLimit(Usage{Objects: 1})
	d, err := ctx.OpenXRCDomain(nil)
	require.NoError(t, err)
	_, err = d.CreateQP()
	require.ErrorIs(t, err, ErrPoolLimit)
	_, err = d.OpenQP(1)
	require.ErrorIs(t, err, ErrPoolLimit)
	_, err = d.CreateSRQ(pd, cq, SRQAttr{MaxWR: 1})
	require.ErrorIs(t, err, ErrPoolLimit)
	require.NoError(t, d.Close())
	_, err = ctx.OpenXRCDomain(nil)
	require.NoError(t, err)
}

func TestWhatXRCDoesNotHaveIsRefused(t *testing.T) {
	ctx, _, pd, cq := withXRC()
	d, err := ctx.OpenXRCDomain(nil)
	require.NoError(t, err)
	srq, err := d.CreateSRQ(pd, cq, SRQAttr{MaxWR: 4})
	require.NoError(t, err)
	for name, attr := range map[string]QPInitAttr{
		"a target of no domain":        {Type: QPTypeXRCTarget, SendCQ: cq, RecvCQ: cq},
		"an initiator that receives":   {Type: QPTypeXRCInitiator, SendCQ: cq, RecvCQ: cq},
		"one with a receive queue":     {Type: QPTypeXRCInitiator, SendCQ: cq, Cap: QPCap{MaxRecvWR: 1}},
		"one with SGEs for it":         {Type: QPTypeXRCInitiator, SendCQ: cq, Cap: QPCap{MaxRecvSGE: 1}},
		"one with an SRQ":              {Type: QPTypeXRCInitiator, SendCQ: cq, SRQ: &SRQ{pd: pd}},
		"one without a send CQ":        {Type: QPTypeXRCInitiator},
		"an RC QP without receive CQ":  {Type: QPTypeRC, SendCQ: cq},
		"an RC QP with the domain's":   {Type: QPTypeRC, SendCQ: cq, RecvCQ: cq, SRQ: srq},
		"an initiator of other device": {Type: QPTypeXRCInitiator, SendCQ: &CQ{ctx: new(Context)}},
	} {
		_, err := pd.CreateQP(attr)
		require.ErrorIs(t, err, ErrInvalid, name)
	}
	other := &Context{}
	for name, c := range map[string]struct {
		pd   *PD
		cq   *CQ
		attr SRQAttr
	}{
		"no PD":        {nil, cq, SRQAttr{MaxWR: 1}},
		"no CQ":        {pd, nil, SRQAttr{MaxWR: 1}},
		"another's PD": {&PD{ctx: other}, cq, SRQAttr{MaxWR: 1}},
		"another's CQ": {pd, &CQ{ctx: other}, SRQAttr{MaxWR: 1}},
		"no receives":  {pd, cq, SRQAttr{}},
		"too many":     {pd, cq, SRQAttr{MaxWR: 9}},
	} {
		_, err := d.CreateSRQ(c.pd, c.cq, c.attr)
		require.ErrorIs(t, err, ErrInvalid, name)
	}
	ctx.attr.Caps &^= CapXRC
	_, err = ctx.OpenXRCDomain(nil)
	require.ErrorIs(t, err, ErrUnsupported)
	_, err = pd.CreateQP(QPInitAttr{Type: QPTypeXRCInitiator, SendCQ: cq})
	require.ErrorIs(t, err, ErrUnsupported)
	withoutXRC := &Context{drv: twoPorts{}, attr: DeviceAttr{Caps: CapXRC}}
	_, err = withoutXRC.OpenXRCDomain(nil)
	require.ErrorIs(t, err, ErrUnsupported, "the provider has none")
}

func TestRequestsOfXRCNameAnSRQ(t *testing.T) {
	ctx, _, pd, cq := withXRC()
	var file bytes.Buffer
	ctx.SetTracer(NewPacketTracer(&file))
	qp, err := pd.CreateQP(QPInitAttr{Type: QPTypeXRCInitiator, SendCQ: cq, Cap: QPCap{MaxSendWR: 4, MaxSendSGE: 1}})
	require.NoError(t, err)
	_, err = qp.PostSend([]SendWR{{Opcode: OpSend, RemoteSRQ: 1 << 24}})
	require.ErrorIs(t, err, ErrInvalid)
	for _, op := range []Opcode{OpFetchAdd, OpFlush} {
		_, err = qp.PostSend([]SendWR{{Opcode: op}})
		require.ErrorIs(t, err, ErrUnsupported)
	}
	file.Reset()
	b := qp.NewSendBatch(1)
	b.Start()
	b.Send()
	b.SetSGE(SGE{Length: 257})
	b.SetRemoteSRQ(0xabcdef)
	b.Read(0x11, 0x22)
	b.SetRemoteSRQ(0x51)
	n, err := b.Complete()
	require.NoError(t, err)
	require.Equal(t, 2, n)
	var got []string
	for packet := range blocks(file.Bytes()) {
		// behind the headers of the block, IPv6 and UDP: BTH, XRCETH
		got = append(got, hex.EncodeToString(packet[28+40+8:][:16]))
	}
	require.Equal(t, []string{"a000ffff000000090000000300abcdef", "a230ffff000000090000000400abcdef", "ac00ffff000000090000000500000051"}, got,
		"the opcodes are those of RC with another service")
	b.SetRemoteSRQ(1)
	_, err = b.Complete()
	require.ErrorIs(t, err, ErrInvalid, "before any operation")
}
