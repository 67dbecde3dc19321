package conformance

import (
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

// CloseAtAnyMoment closes a device, and what is made of it, while others use all that it has:
// nobody may touch memory that is unmapped, or that a library has freed. In every other round
// the QPs are SingleThreaded, to which one goroutine posts sends, and one receives.
func CloseAtAnyMoment(t *testing.T, device string) {
	for round := range 30 {
		o := openAll(t, device, round%2 == 1)
		var users sync.WaitGroup
		for name, use := range o.uses() {
			users.Go(func() {
				for {
					err := use()
					switch {
					case errors.Is(err, verbs.ErrClosed):
						return
					case err != nil && !errors.Is(err, verbs.ErrQueueFull):
						t.Errorf("%s: %v", name, err)
						return
					}
				}
			})
		}
		time.Sleep(time.Duration(round*round) * 10 * time.Microsecond)
		switch round % 3 { // what is used goes first, or with the context
		case 1:
			require.NoError(t, o.qp.Close())
		case 2:
			require.NoError(t, o.qp.Close())
			if o.memory != nil {
				require.NoError(t, o.ofMemory.Close())
				closeUsed(t, o.memory.Close) // an MR that is being made, a copy
			}
			closeUsed(t, o.cq.Close) // a QP that is being made
			closeUsed(t, o.ch.Close) // the CQ
		}
		require.NoError(t, o.ctx.Close())
		users.Wait() // ends with Close
	}
}

// closeUsed closes what others use, if there is a moment in which they do not.
func closeUsed(t *testing.T, end func() error) {
	t.Helper()
	for range 100 {
		err := end()
		if err == nil {
			return
		}
		require.ErrorIs(t, err, verbs.ErrBusy)
		time.Sleep(time.Microsecond)
	}
}

// objects are of each kind one, with a QP that is connected to itself. memory is nil on a device
// without.
type objects struct {
	ctx      *verbs.Context
	pd       *verbs.PD
	ch       *verbs.CompChannel
	cq       *verbs.CQ
	mr       *verbs.MR
	qp       *verbs.QP
	memory   *verbs.DM
	ofMemory *verbs.MR
}

func openAll(t *testing.T, device string, singleThreaded bool) *objects {
	t.Helper()
	o := new(objects)
	var err error
	o.ctx, err = verbs.Open(device)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, o.ctx.Close()) })
	o.pd, err = o.ctx.AllocPD()
	require.NoError(t, err)
	o.ch, err = o.ctx.CreateCompChannel()
	require.NoError(t, err)
	o.cq, err = o.ctx.CreateCQ(verbs.CQAttr{CQE: 256}, o.ch)
	require.NoError(t, err)
	const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	o.mr, err = o.pd.AllocMR(4096, access, verbs.MROptions{})
	require.NoError(t, err)
	if o.ctx.Attr().Caps.Has(verbs.CapDeviceMemory) {
		o.memory, err = o.ctx.AllocDM(256)
		require.NoError(t, err)
		o.ofMemory, err = o.pd.RegisterDM(o.memory, 0, 256, access)
		require.NoError(t, err)
	}
	o.qp, err = o.pd.CreateQP(verbs.QPInitAttr{
		Type: verbs.QPTypeRC, SendCQ: o.cq, RecvCQ: o.cq, SingleThreaded: singleThreaded,
		Cap: verbs.QPCap{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	require.NoError(t, err)
	gids, err := o.ctx.QueryGIDs(1)
	require.NoError(t, err)
	gid, _ := rdmahost.PreferredGID(gids, netip.Addr{}) // of InfiniBand the first
	port, err := o.ctx.QueryPort(1)
	require.NoError(t, err)
	av := verbs.AddressVector{DGID: gid.GID, SGIDIndex: uint8(gid.Index), HopLimit: 64, IsGlobal: true, DLID: port.LID, Port: 1}
	require.NoError(t, o.qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1, Access: access},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess))
	require.NoError(t, o.qp.Modify(verbs.QPAttr{
		State: verbs.QPStateRTR, PathMTU: verbs.MTU1024, DestQPN: o.qp.Num(), MaxDestRdAtomic: 1, MinRNRTimer: 1, AV: av,
	}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|
		verbs.QPAttrMaxDestRdAtomic|verbs.QPAttrMinRNRTimer))
	require.NoError(t, o.qp.Modify(verbs.QPAttr{State: verbs.QPStateRTS, Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxRdAtomic: 1},
		verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCount|verbs.QPAttrRNRRetry|verbs.QPAttrSQPSN|verbs.QPAttrMaxRdAtomic))
	return o
}

// made closes what was made.
func made(object interface{ Close() error }, err error) error {
	if err == nil {
		err = object.Close()
	}
	return err
}

// uses are calls for goroutines of their own, by name.
func (o *objects) uses() map[string]func() error {
	write := verbs.SendWR{Opcode: verbs.OpWrite, SGL: []verbs.SGE{o.mr.SGE(0, 16)}, RemoteAddr: o.mr.Addr() + 100, RKey: o.mr.RKey()}
	wrs := []verbs.SendWR{write, write, write}
	if o.memory != nil {
		wrs[1].SGL = []verbs.SGE{{Length: 16, LKey: o.ofMemory.LKey()}}
	}
	wrs[2].Flags = verbs.SendSignaled
	recv := []verbs.RecvWR{{SGL: []verbs.SGE{o.mr.SGE(0, 64)}}}
	attr := o.qp.Attr()
	uses := map[string]func() error{
		"PostSend": func() error { _, err := o.qp.PostSend(wrs); return err },
		"PostRecv": func() error { _, err := o.qp.PostRecv(recv); return err },
		"Poll":     func() error { _, err := o.cq.Poll(make([]verbs.WC, 64)); return err },
		"Wait": func() error {
			if err := o.cq.Arm(false); err != nil {
				return err
			}
			return o.ch.Wait(time.Time{})
		},
		"Query":     func() error { _, err := o.qp.Query(); return err },
		"CreateQP":  func() error { qp, err := o.pd.CreateQP(attr); return made(qp, err) },
		"NextEvent": func() error { _, err := o.ctx.NextEvent(); return err },
		"AllocMR": func() error {
			mr, err := o.pd.AllocMR(4096, verbs.AccessLocalWrite, verbs.MROptions{})
			return made(mr, err)
		},
	}
	caps := o.ctx.Attr().Caps
	if caps.Has(verbs.CapNullMR) {
		uses["AllocNullMR"] = func() error { mr, err := o.pd.AllocNullMR(); return made(mr, err) }
	}
	if caps.Has(verbs.CapRegisterAll) {
		uses["RegisterAll"] = func() error { mr, err := o.pd.RegisterAll(verbs.AccessLocalWrite); return made(mr, err) }
	}
	if caps.Has(verbs.CapClock) {
		uses["Clock"] = func() error {
			time.Sleep(time.Microsecond) // it takes no system call, and would have a processor for itself
			_, err := o.ctx.Clock()
			return err
		}
	}
	if o.memory == nil {
		return uses
	}
	uses["ReadAt"] = func() error { _, err := o.memory.ReadAt(make([]byte, 256), 0); return err }
	uses["WriteAt"] = func() error { _, err := o.memory.WriteAt(make([]byte, 256), 0); return err }
	uses["RegisterDM"] = func() error {
		mr, err := o.pd.RegisterDM(o.memory, 0, 64, verbs.AccessLocalWrite)
		return made(mr, err)
	}
	uses["AllocDM"] = func() error { memory, err := o.ctx.AllocDM(64); return made(memory, err) }
	return uses
}
