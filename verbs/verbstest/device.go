package verbstest

import (
	"fmt"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// testDevice asks a device about itself, and makes one object of each kind, as a
// program does that tries out what there is.
func testDevice(t *testing.T, s *suite) {
	t.Run("it is listed, and opened by its name", func(t *testing.T) {
		ctx := s.open(t).A
		list, err := verbs.Devices()
		require.NoError(t, err)
		require.Contains(t, list, ctx.Attr().DeviceInfo)
		again, err := verbs.Open(ctx.Name())
		require.NoError(t, err)
		require.Equal(t, ctx.Attr(), again.Attr())
		require.NoError(t, again.Close())
		_, err = verbs.Open(ctx.Name() + "_")
		require.ErrorIs(t, err, verbs.ErrNoDevice)
	})
	t.Run("it has limits and ports", func(t *testing.T) {
		p := s.open(t)
		attr := p.A.Attr()
		for name, n := range map[string]int{
			"QPs": attr.MaxQP, "requests": attr.MaxQPWR, "SGEs": attr.MaxSGE, "CQs": attr.MaxCQ, "completions": attr.MaxCQE,
			"MRs": attr.MaxMR, "PDs": attr.MaxPD, "ports": attr.PhysPorts,
		} {
			require.Positive(t, n, name)
		}
		require.Greater(t, attr.MaxMRSize, uint64(4096))
		if attr.Transport != verbs.TransportSoft {
			require.NotZero(t, attr.NodeGUID)
			require.NotZero(t, attr.SystemImageGUID)
		}
		for n := uint8(1); int(n) <= attr.PhysPorts; n++ {
			port, err := p.A.QueryPort(n)
			require.NoError(t, err)
			// siw of Linux 6.12 has a greater one than it has
			if attr.Transport != verbs.TransportIWARP {
				require.GreaterOrEqual(t, port.MaxMTU, port.ActiveMTU)
			}
			require.NotZero(t, port.ActiveMTU.Bytes())
			require.Greater(t, port.MaxMsgSize, uint32(4096))
			gids, err := p.A.QueryGIDs(n)
			require.NoError(t, err)
			require.NotEmpty(t, gids)
			for _, gid := range gids {
				require.NotZero(t, gid.GID)
				require.Less(t, gid.Index, port.GIDTableLen)
				require.Equal(t, n, gid.Port)
				got, err := p.A.QueryGID(n, gid.Index)
				require.NoError(t, err)
				require.Equal(t, gid, got)
			}
			for _, index := range []int{-1, port.GIDTableLen} {
				_, err = p.A.QueryGID(n, index)
				require.ErrorIs(t, err, verbs.ErrInvalid)
			}
			if free := port.GIDTableLen - 1; free > gids[len(gids)-1].Index {
				got, err := p.A.QueryGID(n, free)
				require.NoError(t, err)
				require.Equal(t, verbs.GIDEntry{Index: free, Port: n}, got, "an empty row")
			}
		}
		port, err := p.A.QueryPort(1)
		require.NoError(t, err)
		if port.PKeyTblLen > 0 {
			key, err := p.A.QueryPKey(1, 0)
			require.NoError(t, err)
			require.EqualValues(t, 0xffff, key, "full membership in the default partition")
			index, err := p.A.PKeyIndex(1, 0xffff)
			require.NoError(t, err)
			require.Zero(t, index)
		}
		_, err = p.A.PKeyIndex(1, 0x1234)
		require.ErrorIs(t, err, verbs.ErrInvalid, "there is none")
		_, err = p.A.QueryPKey(1, port.PKeyTblLen)
		require.ErrorIs(t, err, verbs.ErrInvalid)
		for _, n := range []uint8{0, uint8(attr.PhysPorts + 1), 255} {
			_, err = p.A.QueryPKey(n, 0)
			require.ErrorIs(t, err, verbs.ErrInvalid, "P_Key of port %d", n)
			_, err := p.A.QueryPort(n)
			require.ErrorIs(t, err, verbs.ErrInvalid, "port %d", n)
			_, err = p.A.PKeyIndex(n, 0xffff)
			require.ErrorIs(t, err, verbs.ErrInvalid)
			_, err = p.A.QueryGID(n, 0)
			require.ErrorIs(t, err, verbs.ErrInvalid)
			_, err = p.A.QueryGIDs(n)
			require.ErrorIs(t, err, verbs.ErrInvalid, "GIDs of port %d", n)
		}
	})
	t.Run("PDs and what is closed twice", func(t *testing.T) {
		p := s.open(t)
		var pds []*verbs.PD
		for range 10 {
			pd, err := p.A.AllocPD()
			require.NoError(t, err)
			pds = append(pds, pd)
		}
		for _, pd := range pds {
			require.NoError(t, pd.Close())
			require.NoError(t, pd.Close())
		}
	})
	t.Run("an MR that peers may write and its owner may not is refused", func(t *testing.T) {
		a, _ := s.sides(t, usual)
		for _, access := range []verbs.Access{verbs.AccessRemoteWrite, verbs.AccessRemoteAtomic, 1 << 30} {
			_, err := a.pd.AllocMR(4096, access, verbs.MROptions{})
			require.ErrorIs(t, err, verbs.ErrInvalid, "%#x", uint32(access))
			_, err = a.pd.RegisterMR(make([]byte, 4096), access)
			require.ErrorIs(t, err, verbs.ErrInvalid, "%#x", uint32(access))
		}
	})
	t.Run("CQs of many sizes, of the first and the last vector", func(t *testing.T) {
		p := s.open(t)
		attr := p.A.Attr()
		ch, err := p.A.CreateCompChannel()
		require.NoError(t, err)
		last := max(attr.CompVectors, 1) - 1
		for _, cqe := range []int{1, 3, min(attr.MaxCQE/2, 100_000), min(attr.MaxCQE, 200_000)} {
			for _, vector := range []int{0, last} {
				cq, err := p.A.CreateCQ(verbs.CQAttr{CQE: cqe, Vector: vector}, ch)
				require.NoError(t, err, "%d completions, vector %d", cqe, vector)
				require.GreaterOrEqual(t, cq.Cap(), cqe)
				require.NoError(t, cq.Close())
			}
		}
		for _, bad := range []verbs.CQAttr{{}, {CQE: -1}, {CQE: attr.MaxCQE + 1}, {CQE: 100, Vector: last + 1}, {CQE: 100, Vector: -1}} {
			_, err := p.A.CreateCQ(bad, nil)
			require.ErrorIs(t, err, verbs.ErrInvalid, "%+v", bad)
		}
	})
	t.Run("an address handle needs a GID on Ethernet", func(t *testing.T) {
		a, b := s.sides(t, usual)
		if !a.ctx.Attr().Caps.Has(verbs.CapUD) {
			t.Skip("the device has no address handles")
		}
		ah, err := a.pd.CreateAH(a.vectorTo(b))
		require.NoError(t, err)
		require.NoError(t, ah.Close())
		require.NoError(t, ah.Close())
		if a.ctx.Attr().Transport == verbs.TransportIB {
			t.Skip("this device has LIDs")
		}
		_, err = a.pd.CreateAH(verbs.AddressVector{Port: 1})
		require.ErrorIs(t, err, verbs.ErrInvalid)
	})
	t.Run("a memory window is of type 1 or 2", func(t *testing.T) {
		a, _ := s.sides(t, usual)
		if !a.ctx.Attr().Caps.Has(verbs.CapMemWindow) {
			t.Skip("the device has no memory windows")
		}
		for _, typ := range []verbs.MWType{0, 3} {
			_, err := a.pd.AllocMW(typ)
			require.ErrorIs(t, err, verbs.ErrInvalid)
		}
	})
	for name, typ := range map[string]verbs.QPType{"RC": verbs.QPTypeRC, "UC": verbs.QPTypeUC, "UD": verbs.QPTypeUD} {
		t.Run(name+" QPs have the sizes that they were asked for", func(t *testing.T) { testQPSizes(t, s, typ) })
	}
	t.Run("a UD QP has the Q_Key and the packet number that it was given", func(t *testing.T) {
		a, _ := s.sides(t, usual)
		a.other(verbs.QPTypeUD)
		got, err := a.qp.Query()
		require.NoError(t, err)
		require.EqualValues(t, datagramQKey, got.QKey)
		const privileged uint32 = 1 << 31 // for which the kernel wants CAP_NET_RAW in a request, not here
		require.NoError(t, a.qp.Modify(verbs.QPAttr{QKey: privileged}, verbs.QPAttrQKey))
		require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTR}, verbs.QPAttrState))
		require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS, SQPSN: 0x45}, verbs.QPAttrState|verbs.QPAttrSQPSN))
		got, err = a.qp.Query()
		require.NoError(t, err)
		require.Equal(t, privileged, got.QKey)
		require.EqualValues(t, 0x45, got.SQPSN)
	})
	t.Run("a QP has the READs outstanding that it was given", func(t *testing.T) {
		a, b := s.sides(t, usual)
		attr := a.ctx.Attr()
		want := uint8(min(12, attr.MaxQPRdAtomic, attr.MaxQPInitRdAtomic))
		a.toInit()
		to := goodAttr(a, b, verbs.QPStateInit, verbs.QPStateRTR)
		to.MaxDestRdAtomic = want
		require.NoError(t, a.qp.Modify(to, verbs.QPAttrState|rules[verbs.QPTypeRC][[2]verbs.QPState{ini, rtr}].required))
		to.State, to.MaxRdAtomic = verbs.QPStateRTS, want
		require.NoError(t, a.qp.Modify(to, verbs.QPAttrState|rules[verbs.QPTypeRC][[2]verbs.QPState{rtr, rts}].required))
		got, err := a.qp.Query()
		require.NoError(t, err)
		require.GreaterOrEqual(t, got.MaxRdAtomic, want)
		require.GreaterOrEqual(t, got.MaxDestRdAtomic, want)
	})
}

// testQPSizes makes QPs of a service with sizes up to the device's limits, and beyond.
func testQPSizes(t *testing.T, s *suite, typ verbs.QPType) {
	a, _ := s.sides(t, usual)
	dev := a.ctx.Attr()
	if typ == verbs.QPTypeUC && !dev.Caps.Has(verbs.CapUC) || typ == verbs.QPTypeUD && !dev.Caps.Has(verbs.CapUD) {
		_, err := a.pd.CreateQP(verbs.QPInitAttr{Type: typ, SendCQ: a.send, RecvCQ: a.recv, SingleThreaded: a.conf.single, Cap: usual.cap})
		require.ErrorIs(t, err, verbs.ErrUnsupported)
		t.Skip("the device has no such service")
	}
	most := verbs.QPCap{MaxSendWR: dev.MaxQPWR, MaxRecvWR: dev.MaxQPWR, MaxSendSGE: dev.MaxSGE, MaxRecvSGE: dev.MaxSGE, MaxInline: dev.MaxInline}
	for i, sizes := range []verbs.QPCap{
		{},
		{MaxSendWR: 1, MaxSendSGE: 1},
		{MaxRecvWR: 1, MaxRecvSGE: 1},
		{MaxSendWR: 33, MaxRecvWR: 65, MaxSendSGE: 3, MaxRecvSGE: 2, MaxInline: 31},
		// libmlx5 counts what else is in a request as SGEs: it takes fewer
		// than the device has.
		{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: min(most.MaxSendSGE, 16), MaxRecvSGE: min(most.MaxRecvSGE, 16)},
		{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: min(most.MaxInline, 4096)},
	} {
		qp, err := a.pd.CreateQP(verbs.QPInitAttr{Type: typ, SendCQ: a.send, RecvCQ: a.recv, SingleThreaded: a.conf.single, Cap: sizes, SignalAll: i%2 == 0})
		require.NoError(t, err, "%+v", sizes)
		attr := qp.Attr()
		got, err := qp.Query()
		require.NoError(t, err)
		require.Equal(t, verbs.QPStateReset, got.State)
		for what, has := range map[string][3]int{
			"sends": {sizes.MaxSendWR, attr.Cap.MaxSendWR, got.Cap.MaxSendWR}, "receives": {sizes.MaxRecvWR, attr.Cap.MaxRecvWR, got.Cap.MaxRecvWR},
			"SGEs of sends":    {sizes.MaxSendSGE, attr.Cap.MaxSendSGE, got.Cap.MaxSendSGE},
			"SGEs of receives": {sizes.MaxRecvSGE, attr.Cap.MaxRecvSGE, got.Cap.MaxRecvSGE}, "bytes inline": {sizes.MaxInline, attr.Cap.MaxInline, got.Cap.MaxInline},
		} {
			require.GreaterOrEqual(t, has[1], has[0], what)
			if a.iwarp() && what == "bytes inline" {
				continue // Query says what siw has at most
			}
			require.Equal(t, has[1], has[2], "%s of %+v: Attr and Query", what, sizes)
		}
		require.Equal(t, typ, attr.Type)
		require.Equal(t, i%2 == 0, attr.SignalAll)
		require.NoError(t, qp.Close())
		require.NoError(t, qp.Close())
	}
	for i := range 5 {
		bad := verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
		*[]*int{&bad.MaxSendWR, &bad.MaxRecvWR, &bad.MaxSendSGE, &bad.MaxRecvSGE, &bad.MaxInline}[i] =
			1 + []int{most.MaxSendWR, most.MaxRecvWR, most.MaxSendSGE, most.MaxRecvSGE, most.MaxInline}[i]
		_, err := a.pd.CreateQP(verbs.QPInitAttr{Type: typ, SendCQ: a.send, RecvCQ: a.recv, SingleThreaded: a.conf.single, Cap: bad})
		require.ErrorIs(t, err, verbs.ErrInvalid, fmt.Sprintf("%+v", bad))
	}
}
