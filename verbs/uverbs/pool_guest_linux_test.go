package uverbs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

// poolChild is set in the process of the cgroup.
const poolChild = "RAMJET_POOL_CHILD"

// TestAPoolCountsAsTheKernelDoes makes an object of each kind in a cgroup of its own, and compares.
func TestAPoolCountsAsTheKernelDoes(t *testing.T) {
	if os.Getenv(poolChild) != "" {
		for _, device := range []string{"rxe0", "siw0"} {
			t.Run(device, func(t *testing.T) { countBeside(t, device) })
		}
		return
	}
	requireDevice(t, "rxe0")
	dir := filepath.Join("/sys/fs/cgroup", "ramjet-pool")
	require.NoError(t, os.Mkdir(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.Remove(dir)) })
	group, err := os.Open(dir)
	require.NoError(t, err)
	defer group.Close()
	command := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	command.Env = append(os.Environ(), poolChild+"=1")
	command.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name()+"/rxe0", "it was not run")
}

func countBeside(t *testing.T, device string) {
	requireDevice(t, device)
	var pool verbs.Pool
	var made verbs.Usage
	same := func(what string) {
		t.Helper()
		limits, err := rdmahost.ReadLimits()
		require.NoError(t, err)
		require.Equal(t, made, pool.DeviceUsage()[device], what)
		for _, c := range limits.Cgroups {
			if c.Group == "/ramjet-pool" && c.Device == device {
				require.Equal(t, made, verbs.Usage{Handles: int(c.Handles.Current), Objects: int(c.Objects.Current)}, "%s: the kernel", what)
				return
			}
		}
		t.Fatal("this process is in no cgroup with the rdma controller")
	}
	ctx, err := pool.Open(device)
	require.NoError(t, err)
	made.Handles++
	same("a device")
	var closes []func() error
	object := func(what string, err error, ends func() error) {
		t.Helper()
		require.NoError(t, err, what)
		closes = append(closes, ends)
		made.Objects++
		same(what)
	}
	pd, err := ctx.AllocPD()
	object("PD", err, pd.Close)
	ch, err := ctx.CreateCompChannel()
	require.NoError(t, err)
	same("a completion channel, which is none")
	cq, err := ctx.CreateCQ(verbs.CQAttr{CQE: 4}, ch)
	object("CQ", err, cq.Close)
	srq, err := pd.CreateSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 1})
	object("SRQ", err, srq.Close)
	qp, err := pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: cq, RecvCQ: cq, SRQ: srq})
	object("QP", err, qp.Close)
	mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite, verbs.MROptions{})
	object("MR", err, mr.Close)
	if ctx.Attr().Caps.Has(verbs.CapMemWindow) {
		mw, err := pd.AllocMW(verbs.MWType2)
		object("memory window", err, mw.Close)
	}
	if ctx.Attr().Caps.Has(verbs.CapUD) {
		gids, err := ctx.QueryGIDs(1)
		require.NoError(t, err)
		ah, err := pd.CreateAH(verbs.AddressVector{DGID: gids[0].GID, SGIDIndex: uint8(gids[0].Index), IsGlobal: true, HopLimit: 1, Port: 1})
		object("address handle", err, ah.Close)
	}
	_, err = pd.AllocMR(4096, verbs.AccessRemoteWrite, verbs.MROptions{})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	same("what failed")
	for i := len(closes) - 1; i >= 0; i-- {
		require.NoError(t, closes[i]())
		made.Objects--
		same("one less")
	}
	require.NoError(t, ctx.Close())
	made = verbs.Usage{}
	same("nothing")
}
