package verbs_test

import (
	"math"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

func TestTheSoftwareHCAIsThere(t *testing.T) {
	list, err := verbs.Devices()
	require.NoError(t, err)
	var found *verbs.DeviceInfo
	for i := range list {
		if list[i].Name == "soft0" {
			found = &list[i]
		}
	}
	require.NotNil(t, found)
	require.Equal(t, verbs.TransportSoft, found.Transport)

	dev := open(t)
	require.Equal(t, "soft0", dev.Name())
	require.Equal(t, *found, dev.Attr().DeviceInfo)
	require.GreaterOrEqual(t, dev.Attr().PhysPorts, 1)
	port, err := dev.QueryPort(1)
	require.NoError(t, err)
	require.Equal(t, verbs.PortActive, port.State)
	_, err = dev.QueryPort(9)
	require.ErrorIs(t, err, verbs.ErrInvalid)
}

func TestCreateQPChecksItsArguments(t *testing.T) {
	b, other := newBench(t), newBench(t)
	dev := b.dev.Attr()
	for _, c := range []struct {
		name   string
		change func(a *verbs.QPInitAttr)
		want   error
	}{
		{"no type", func(a *verbs.QPInitAttr) { a.Type = 0 }, verbs.ErrInvalid},
		{"unknown type", func(a *verbs.QPInitAttr) { a.Type = 8 }, verbs.ErrInvalid},
		{"no XRC", func(a *verbs.QPInitAttr) { a.Type = verbs.QPTypeXRCInitiator }, verbs.ErrUnsupported},
		{"no send CQ", func(a *verbs.QPInitAttr) { a.SendCQ = nil }, verbs.ErrInvalid},
		{"no receive CQ", func(a *verbs.QPInitAttr) { a.RecvCQ = nil }, verbs.ErrInvalid},
		{"CQ of another device", func(a *verbs.QPInitAttr) { a.RecvCQ = other.cq }, verbs.ErrInvalid},
		{"send queue too long", func(a *verbs.QPInitAttr) { a.Cap.MaxSendWR = dev.MaxQPWR + 1 }, verbs.ErrInvalid},
		{"receive queue too long", func(a *verbs.QPInitAttr) { a.Cap.MaxRecvWR = dev.MaxQPWR + 1 }, verbs.ErrInvalid},
		{"negative queue", func(a *verbs.QPInitAttr) { a.Cap.MaxSendWR = -1 }, verbs.ErrInvalid},
		{"too many send SGEs", func(a *verbs.QPInitAttr) { a.Cap.MaxSendSGE = dev.MaxSGE + 1 }, verbs.ErrInvalid},
		{"too many receive SGEs", func(a *verbs.QPInitAttr) { a.Cap.MaxRecvSGE = dev.MaxSGE + 1 }, verbs.ErrInvalid},
		{"too much inline", func(a *verbs.QPInitAttr) { a.Cap.MaxInline = dev.MaxInline + 1 }, verbs.ErrInvalid},
		{"negative inline", func(a *verbs.QPInitAttr) { a.Cap.MaxInline = -1 }, verbs.ErrInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			attr := b.attr()
			c.change(&attr)
			_, err := b.pd.CreateQP(attr)
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, "verbs: create QP on soft0: ")
		})
	}
}

func TestCreateQPReportsWhatItMade(t *testing.T) {
	b := newBench(t)
	qp := b.qp(t)
	want := b.attr().Cap
	got := qp.Attr().Cap
	require.GreaterOrEqual(t, got.MaxSendWR, want.MaxSendWR)
	require.GreaterOrEqual(t, got.MaxRecvWR, want.MaxRecvWR)
	require.GreaterOrEqual(t, got.MaxInline, want.MaxInline)
	require.Same(t, b.pd, qp.PD())
	require.Same(t, b.dev, qp.PD().Context())
	require.Less(t, qp.Num(), uint32(1<<24))
	require.NotEqual(t, qp.Num(), b.qp(t).Num())
}

func TestCreateCQChecksItsArguments(t *testing.T) {
	dev := open(t)
	other, err := open(t).CreateCompChannel()
	require.NoError(t, err)
	defer other.Close()
	for name, c := range map[string]struct {
		attr verbs.CQAttr
		ch   *verbs.CompChannel
	}{
		"no entries":                {verbs.CQAttr{}, nil},
		"too many entries":          {verbs.CQAttr{CQE: dev.Attr().MaxCQE + 1}, nil},
		"negative vector":           {verbs.CQAttr{CQE: 1, Vector: -1}, nil},
		"vector that is not there":  {verbs.CQAttr{CQE: 1, Vector: max(1, dev.Attr().CompVectors)}, nil},
		"channel of another device": {verbs.CQAttr{CQE: 1}, other},
	} {
		_, err := dev.CreateCQ(c.attr, c.ch)
		require.ErrorIs(t, err, verbs.ErrInvalid, name)
	}
	cq, err := dev.CreateCQ(verbs.CQAttr{CQE: 10}, nil)
	require.NoError(t, err)
	defer cq.Close()
	require.GreaterOrEqual(t, cq.Cap(), 10)
	require.Nil(t, cq.Channel())
	if dev.Attr().Caps.Has(verbs.CapResizeCQ) {
		require.ErrorIs(t, cq.Resize(0), verbs.ErrInvalid)
		require.ErrorIs(t, cq.Resize(dev.Attr().MaxCQE+1), verbs.ErrInvalid)
		require.NoError(t, cq.Resize(100))
		require.GreaterOrEqual(t, cq.Cap(), 100)
	} else {
		require.ErrorIs(t, cq.Resize(100), verbs.ErrUnsupported)
	}
}

func TestObjectsInUseStay(t *testing.T) {
	b := newBench(t)
	b.qp(t)
	require.ErrorIs(t, b.pd.Close(), verbs.ErrBusy)
	require.ErrorIs(t, b.cq.Close(), verbs.ErrBusy)
}

func TestModifyFollowsTheStateMachine(t *testing.T) {
	b := newBench(t)
	qp := b.qp(t)
	state := func() verbs.QPState {
		a, err := qp.Query()
		require.NoError(t, err)
		return a.State
	}
	require.Equal(t, verbs.QPStateReset, state())
	_, err := qp.PostRecv([]verbs.RecvWR{{}})
	require.ErrorIs(t, err, verbs.ErrInvalid, "RESET takes no receives")
	require.ErrorIs(t, qp.Fail(), verbs.ErrInvalid, "RESET has nothing to flush")
	err = qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS}, rtsMask)
	require.EqualError(t, err, "verbs: modify QP on soft0: invalid argument: no transition from RESET to RTS")
	require.ErrorIs(t, qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 200}, initMask), verbs.ErrInvalid)
	require.Equal(t, verbs.QPStateReset, state(), "what failed changed nothing")

	require.NoError(t, toInit(qp))
	require.Equal(t, verbs.QPStateInit, state())
	_, err = qp.PostRecv([]verbs.RecvWR{{ID: 5}})
	require.NoError(t, err)
	require.NoError(t, qp.Fail())
	require.Equal(t, verbs.QPStateErr, state())
	wc := b.poll(t, 1)[0]
	require.EqualValues(t, 5, wc.ID)
	require.ErrorIs(t, wc.Err(), verbs.WCWRFlushErr)
	require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPStateReset}, verbs.QPAttrState))
	require.Equal(t, verbs.QPStateReset, state())
}

func TestSGEsStayWithinTheirMR(t *testing.T) {
	b := newBench(t)
	mr, err := b.pd.AllocMR(100, verbs.AccessLocalWrite, verbs.MROptions{})
	require.NoError(t, err)
	defer mr.Close()
	require.Equal(t, verbs.SGE{Addr: mr.Addr() + 10, Length: 90, LKey: mr.LKey()}, mr.SGE(10, 90))
	require.Equal(t, verbs.SGE{Addr: mr.Addr() + 100, LKey: mr.LKey()}, mr.SGE(100, 0))
	for _, c := range [][2]int{{-1, 5}, {0, 101}, {101, 0}, {50, 51}, {50, -1}, {math.MaxInt, 1}} {
		require.Panics(t, func() { mr.SGE(c[0], c[1]) }, "offset %d, length %d", c[0], c[1])
	}
	require.Same(t, b.pd, mr.PD())
	require.Equal(t, verbs.AccessLocalWrite, mr.Access())
}

func TestDeviceMemoryIsWhereTheDeviceHasSome(t *testing.T) {
	b := newBench(t)
	require.False(t, b.dev.Attr().Caps.Has(verbs.CapDeviceMemory))
	_, err := b.dev.AllocDM(64)
	require.ErrorIs(t, err, verbs.ErrUnsupported)
	_, err = b.pd.RegisterDM(nil, 0, 64, verbs.AccessLocalWrite)
	require.ErrorIs(t, err, verbs.ErrUnsupported)
}

func TestAllMemoryIsRegisteredWhereTheDeviceCan(t *testing.T) {
	b := newBench(t)
	require.False(t, b.dev.Attr().Caps.Has(verbs.CapRegisterAll))
	_, err := b.pd.RegisterAll(verbs.AccessLocalWrite)
	require.ErrorIs(t, err, verbs.ErrUnsupported)
	mr, err := b.pd.AllocMR(64, 0, verbs.MROptions{})
	require.NoError(t, err)
	require.Panics(t, func() { mr.SGEOf(mr.Bytes()) }, "it has memory of its own")
	require.NoError(t, mr.Close())
}

func TestCreateSRQChecksItsArguments(t *testing.T) {
	b := newBench(t)
	dev := b.dev.Attr()
	for _, attr := range []verbs.SRQAttr{
		{MaxWR: 0}, {MaxWR: dev.MaxSRQWR + 1}, {MaxWR: 4, MaxSGE: -1}, {MaxWR: 4, MaxSGE: dev.MaxSRQSGE + 1},
		{MaxWR: 4, Limit: -1}, {MaxWR: 4, Limit: 5},
	} {
		_, err := b.pd.CreateSRQ(attr)
		require.ErrorIs(t, err, verbs.ErrInvalid, "%+v", attr)
	}
	srq, err := b.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 4, Limit: 4})
	require.NoError(t, err)
	require.NoError(t, srq.Close())
}
