//go:build amd64 || arm64

package mlx5_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

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

func testMemoryOfTwoHosts(t *testing.T, ctx *verbs.Context) {
	const half = 512 // what is written from, and what is written to
	const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	pd, err := ctx.AllocPD()
	require.NoError(t, err)
	cq, err := ctx.CreateCQ(verbs.CQAttr{CQE: 4}, nil)
	require.NoError(t, err)
	dm, err := ctx.AllocDM(2 * half)
	require.NoError(t, err)
	mr, err := pd.RegisterDM(dm, 0, 2*half, access)
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

	host := modeltest.Host()
	sent, want := pingpong.Fill(make([]byte, half), host), pingpong.Fill(make([]byte, half), 1-host)
	_, err = dm.WriteAt(sent, 0)
	require.NoError(t, err)
	modeltest.Exchange(t, nil) // both are connected
	move := func(op verbs.Opcode) {
		request := verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, SGL: []verbs.SGE{{Length: half, LKey: mr.LKey()}}, RemoteAddr: half, RKey: peer.RKey}
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
