//go:build amd64 || arm64

package mlx5_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
	model "github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/mlx5"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/modeltest"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/pingpong"
)

// Each of two hosts writes from memory of its device to that of the other one, and reads back
// what is there.
func TestMemoryOfDevicesOfTwoHosts(t *testing.T) {
	for name, link := range map[string]fabric.Link{"InfiniBand": fabric.InfiniBand, "RoCE": fabric.Ethernet} {
		t.Run(name, func(t *testing.T) {
			if modeltest.On(t, modeltest.Config{
				Device: model.Config{Link: link}, Hosts: 2, Network: true, Env: []string{"RAMJET_EXPERIMENTAL=mlx5"},
			}) {
				testMemoryOfTwoHosts(t, open(t))
			}
		})
	}
}

// place is what an end tells the other one of itself.
type place struct {
	pingpong.Address
	RKey uint32
}

// connected makes a QP that is connected to that of the other end, and its CQ, and returns the key of what
// the other end has registered.
func connected(t *testing.T, pd *verbs.PD, access verbs.Access, mr *verbs.MR) (*verbs.QP, *verbs.CQ, uint32) {
	ctx := pd.Context()
	cq, err := ctx.CreateCQ(verbs.CQAttr{CQE: 4}, nil)
	require.NoError(t, err)
	qp, err := pd.CreateQP(verbs.QPInitAttr{
		Type: verbs.QPTypeRC, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 2, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	require.NoError(t, err)
	require.NoError(t, qp.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1, Access: access},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess))
	path, err := pingpong.PathOf(ctx)
	require.NoError(t, err)
	mine, err := json.Marshal(place{path.Address(qp), mr.RKey()})
	require.NoError(t, err)
	var peer place
	require.NoError(t, json.Unmarshal(modeltest.Exchange(t, mine), &peer))
	require.NoError(t, path.Connect(qp, verbs.QPTypeRC, peer.Address))
	return qp, cq, peer.RKey
}

func testMemoryOfTwoHosts(t *testing.T, ctx *verbs.Context) {
	const half = 512 // what is written from, and what is written to
	const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	dm, err := ctx.AllocDM(2 * half)
	require.NoError(t, err)
	mr, err := pd.RegisterDM(dm, 0, 2*half, access)
	require.NoError(t, err)
	qp, cq, peerKey := connected(t, pd, access, mr)

	host := modeltest.Host()
	sent, want := pingpong.Fill(make([]byte, half), host), pingpong.Fill(make([]byte, half), 1-host)
	_, err = dm.WriteAt(sent, 0)
	require.NoError(t, err)
	modeltest.Exchange(t, nil) // both are connected
	move := func(op verbs.Opcode) {
		request := verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, SGL: []verbs.SGE{{Length: half, LKey: mr.LKey()}}, RemoteAddr: half, RKey: peerKey}
		_, err := qp.PostSend([]verbs.SendWR{request})
		require.NoError(t, err)
		for wcs := make([]verbs.WC, 1); ; { // ends with the completion
			n, err := cq.Poll(wcs)
			require.NoError(t, err)
			if n > 0 {
				require.NoError(t, wcs[0].Err())
				return
			}
		}
	}
	move(verbs.OpWrite)
	modeltest.Exchange(t, nil) // both have written
	got := make([]byte, half)
	_, err = dm.ReadAt(got, half)
	require.NoError(t, err)
	require.Equal(t, want, got)
	_, err = dm.WriteAt(make([]byte, half), 0)
	require.NoError(t, err)
	move(verbs.OpRead) // what was sent comes back
	_, err = dm.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, sent, got)
	modeltest.Exchange(t, nil) // both have read
}

// Two processes share the memory of one device: neither has what the other one took, and each can
// have what the other one gave back.
func TestMemoryOfADeviceIsOfTheProcessThatTookIt(t *testing.T) {
	if modeltest.On(t, modeltest.Config{Hosts: 2, OneDevice: true, Env: []string{"RAMJET_EXPERIMENTAL=mlx5"}}) {
		testMemoryOfTwoProcesses(t, open(t))
	}
}

func testMemoryOfTwoProcesses(t *testing.T, ctx *verbs.Context) {
	const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite
	me := modeltest.Host()
	half := int(ctx.Attr().MaxDMSize) / 2
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	dm, err := ctx.AllocDM(half)
	require.NoError(t, err)
	mr, err := pd.RegisterDM(dm, 0, half, access)
	require.NoError(t, err)
	want := pingpong.Fill(make([]byte, half), me)
	_, err = dm.WriteAt(want, 0)
	require.NoError(t, err)

	qp, cq, peerKey := connected(t, pd, access, mr)
	require.NotEqual(t, mr.RKey(), peerKey)
	modeltest.Exchange(t, nil) // both have their memory, and are connected

	_, err = ctx.AllocDM(64)
	require.ErrorIs(t, err, unix.ENOMEM) // each has a half
	request := verbs.SendWR{Opcode: verbs.OpWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{{Length: 64, LKey: peerKey}},
		RemoteAddr: 0, RKey: peerKey} // from the other one's memory, as if it were ours
	_, err = qp.PostSend([]verbs.SendWR{request})
	require.NoError(t, err)
	wcs := make([]verbs.WC, 1)
	for n := 0; n == 0; {
		n, err = cq.Poll(wcs)
		require.NoError(t, err)
	}
	require.Equal(t, verbs.WCLocProtErr, wcs[0].Status)
	got := make([]byte, half)
	_, err = dm.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, want, got)
	modeltest.Exchange(t, nil) // both have looked

	for giver := range 2 {
		if me == giver {
			require.NoError(t, mr.Close())
			require.NoError(t, dm.Close())
		}
		modeltest.Exchange(t, nil) // it is given back
		if me != giver {
			other, err := ctx.AllocDM(half)
			require.NoError(t, err)
			require.NoError(t, other.Close())
		}
		modeltest.Exchange(t, nil)
	}
}
