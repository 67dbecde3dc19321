package uverbs

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/internal/thread"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/pingpong"
)

// rxeDevice finds the device rxe0, and skips the test where RAMJET_DEVICES does
// not name it.
func rxeDevice(t testing.TB) rdmahost.Device {
	t.Helper()
	if !slices.Contains(strings.Split(os.Getenv("RAMJET_DEVICES"), ","), "rxe0") {
		t.Skip("needs RDMA devices: go build -o /tmp/guest ./verbs/guest && go test -exec /tmp/guest ./verbs/uverbs")
	}
	list, err := rdmahost.Devices()
	require.NoError(t, err)
	i := slices.IndexFunc(list, func(d rdmahost.Device) bool { return d.Name == "rxe0" })
	require.GreaterOrEqual(t, i, 0, "%+v", list)
	return list[i]
}

// A driver without memory on demand takes no advice, and the kernel says so only of a PD that is there.
func TestADriverThatTakesNoAdviceIsFoundOut(t *testing.T) {
	d, err := openDevice(rxeDevice(t))
	require.NoError(t, err)
	defer d.Close()
	attr, err := d.QueryDevice()
	require.NoError(t, err)
	if attr.Caps.Has(verbs.CapOnDemandPaging) {
		t.Skip("rxe of this kernel pages on demand")
	}
	require.False(t, d.takesAdvice())
}

// TestCommandsGoByWriteToo runs every kind of command through write(2), as on
// kernels and in sandboxes without the ioctl.
func TestCommandsGoByWriteToo(t *testing.T) {
	d, err := openDevice(rxeDevice(t))
	require.NoError(t, err)
	defer d.Close()
	want, err := d.QueryDevice()
	require.NoError(t, err)
	d.file.ByWrite = true
	got, err := d.QueryDevice()
	require.NoError(t, err)
	require.Equal(t, want, got)
	port, err := d.QueryPort(1)
	require.NoError(t, err)
	require.Equal(t, verbs.PortActive, port.State)

	ch, err := d.CreateCompChannel()
	require.NoError(t, err)
	attr := verbs.CQAttr{CQE: 10}
	cq, err := d.CreateCQ(&attr, ch)
	require.NoError(t, err)
	require.NoError(t, cq.Arm(false))
	size, err := cq.Resize(100)
	require.NoError(t, err)
	require.GreaterOrEqual(t, size, 100)
	pd, err := d.AllocPD()
	require.NoError(t, err)
	mr, err := pd.AllocMR(8192, verbs.AccessLocalWrite, verbs.MROptions{HugePages: true})
	require.NoError(t, err)
	srq, err := pd.CreateSRQ(&verbs.SRQAttr{MaxWR: 4, MaxSGE: 1})
	require.NoError(t, err)
	require.NoError(t, srq.Modify(verbs.SRQAttr{Limit: 2, MaxWR: 64}, verbs.SRQAttrLimit|verbs.SRQAttrMaxWR))
	limit, err := srq.Query()
	require.NoError(t, err)
	require.Equal(t, 2, limit.Limit)
	qp, err := pd.CreateQP(&verbs.QPInitAttr{Type: verbs.QPTypeUD, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}}, cq, cq, nil)
	require.NoError(t, err)
	require.NoError(t, qp.Modify(&verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: 5},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrQKey))
	state, err := qp.Query()
	require.NoError(t, err)
	require.Equal(t, verbs.QPStateInit, state.State)
	require.EqualValues(t, 5, state.QKey)
	mw, err := pd.(verbs.WindowDriver).AllocMW(verbs.MWType2)
	require.NoError(t, err)
	gids, err := d.QueryGIDs(1)
	require.NoError(t, err)
	ah, err := pd.(verbs.AddressDriver).CreateAH(&verbs.AddressVector{DGID: gids[1].GID, SGIDIndex: 1, IsGlobal: true, HopLimit: 1, Port: 1})
	require.NoError(t, err)

	require.ErrorIs(t, pd.Dealloc(), verbs.ErrBusy)
	for _, destroy := range []func() error{qp.Destroy, srq.Destroy, cq.Destroy, mr.Deregister, mw.Dealloc, ah.Destroy, ch.Close, pd.Dealloc} {
		require.NoError(t, destroy())
		require.ErrorIs(t, destroy(), verbs.ErrClosed)
	}
}

// The kernel takes commands by write(2) only with the credentials that the device was opened with.
func TestWhatAThreadMayNotDestroyGoesOn(t *testing.T) {
	rxeDevice(t)
	var ends [2]*pingpong.End
	for i := range ends {
		ends[i] = &pingpong.End{Game: pingpong.Game{Device: "rxe0", Size: 4096}}
		require.NoError(t, ends[i].Prepare(pingpong.PathOf))
		defer ends[i].Ctx.Close()
	}
	a, b := ends[0], ends[1]
	require.NoError(t, a.Connect(b.Address()))
	require.NoError(t, b.Connect(a.Address()))
	before := b.Ctx.Objects()
	b.Ctx.Driver().(*device).file.ByWrite = true
	thread.Run(func() {
		_, err := unix.SetfsuidRetUid(1000)
		assert.NoError(t, err)
		for range 2 {
			assert.ErrorIs(t, b.QP.Close(), unix.EACCES)
			assert.ErrorIs(t, b.CQ.Close(), verbs.ErrBusy)
			assert.ErrorIs(t, b.MR.Close(), unix.EACCES)
		}
	})
	require.Equal(t, before, b.Ctx.Objects())
	copy(a.MR.Bytes(), "the memory is there")
	_, err := a.QP.PostSend(a.Send)
	require.NoError(t, err)
	for _, e := range ends {
		var wcs [1]verbs.WC
		require.Eventually(t, func() bool {
			n, err := e.CQ.Poll(wcs[:])
			return n == 1 && err == nil
		}, time.Minute, time.Millisecond)
		require.Equal(t, verbs.WCSuccess, wcs[0].Status)
		require.Equal(t, e.QP.Num(), wcs[0].QPN)
	}
	require.Contains(t, string(b.MR.Bytes()[b.Size:]), "the memory is there")
	for _, end := range []func() error{b.QP.Close, b.CQ.Close, b.MR.Close} {
		require.NoError(t, end())
	}
	require.Equal(t, before-3, b.Ctx.Objects())
}

func TestGIDTablesOfTheKernelAndOfSysfsAgree(t *testing.T) {
	d, err := openDevice(rxeDevice(t))
	require.NoError(t, err)
	defer d.Close()
	table, err := d.gidTable(1)
	require.NoError(t, err)
	require.NotEmpty(t, table)
	bySysfs, err := rdmahost.GIDs(d.entry.Name, 1)
	require.NoError(t, err)
	require.Equal(t, bySysfs, table)
}
