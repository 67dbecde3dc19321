package verbs

import (
	"errors"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMRArgumentsAreChecked(t *testing.T) {
	const every = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic
	plain := DeviceAttr{MaxMRSize: 1 << 30}
	rich := DeviceAttr{MaxMRSize: 1 << 30, Caps: CapMemWindow | CapOnDemandPaging}
	for _, c := range []struct {
		name   string
		length int
		access Access
		dev    DeviceAttr
		want   error
	}{
		{"one byte", 1, 0, plain, nil},
		{"as long as the device allows", 1 << 30, every, plain, nil},
		{"longer", 1<<30 + 1, 0, plain, ErrInvalid},
		{"a device that names no limit", 1<<30 + 1, 0, DeviceAttr{}, nil},
		{"no bytes", 0, 0, plain, ErrInvalid},
		{"negative length", -1, 0, plain, ErrInvalid},
		{"remote read needs no local write", 1, AccessRemoteRead, plain, nil},
		{"remote write needs local write", 1, AccessRemoteWrite, plain, ErrInvalid},
		{"remote atomics need local write", 1, AccessRemoteAtomic, plain, ErrInvalid},
		{"unknown right", 1, 1 << 30, rich, ErrInvalid},
		{"flush without capability", 1, AccessFlushGlobal, plain, ErrUnsupported},
		{"windows without capability", 1, AccessMWBind, plain, ErrUnsupported},
		{"windows", 1, AccessMWBind, rich, nil},
		{"on demand without capability", 1, AccessOnDemand, plain, ErrUnsupported},
		{"on demand", 1, AccessOnDemand, rich, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := checkMR(c.length, c.access, &c.dev)
			if c.want == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, c.want)
		})
	}
}

func TestAccessKnowsWhatIsRemote(t *testing.T) {
	for bit := range 8 {
		a := Access(1 << bit)
		require.Equal(t, a == AccessRemoteWrite || a == AccessRemoteRead || a == AccessRemoteAtomic, a.Remote())
	}
}

func TestPinnedBytesNeverExceedTheCap(t *testing.T) {
	base := PinnedBytes()
	former := SetPinLimit(base + 100)
	defer SetPinLimit(former)
	require.Equal(t, base+100, PinLimit())

	// Eight goroutines want 25 bytes each again and again: never more than
	// four may have them, and since 25 always fit when four more are back,
	// nobody fails because another one's attempt was counted for a moment.
	var most, have int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				if pin(25) != nil {
					continue
				}
				mu.Lock()
				have += 25
				most = max(most, have)
				mu.Unlock()
				mu.Lock()
				have -= 25
				mu.Unlock()
				unpin(25)
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, most, int64(100))
	require.Equal(t, base, PinnedBytes())
}

func TestAHugeWishNeitherFitsNorDisturbs(t *testing.T) {
	base := PinnedBytes()
	defer SetPinLimit(SetPinLimit(base + 100))
	require.NoError(t, pin(60))
	defer unpin(60)
	err := pin(math.MaxInt64)
	require.ErrorIs(t, err, ErrPinLimit)
	require.NoError(t, pin(40), "it fits, whatever was refused before")
	unpin(40)
}

func TestWithoutCapEverythingFits(t *testing.T) {
	defer SetPinLimit(SetPinLimit(0))
	require.NoError(t, pin(1<<50))
	unpin(1 << 50)
}

// Memory that is paged in on demand is not pinned.
func TestMemoryOnDemandDoesNotCountAsPinned(t *testing.T) {
	ctx := &Context{attr: DeviceAttr{Caps: CapOnDemandPaging | CapReregister}, mrs: make(map[*MR]struct{})}
	pd := &PD{ctx: ctx, drv: plainPD{}}
	base := PinnedBytes()
	defer SetPinLimit(SetPinLimit(base + 5000))
	mr, err := pd.AllocMR(10_000, AccessLocalWrite|AccessOnDemand, MROptions{})
	require.NoError(t, err)
	require.Equal(t, base, PinnedBytes())
	require.NoError(t, mr.Reregister(MRUpdate{Memory: make([]byte, 4000), Access: AccessLocalWrite}, MRChangeMemory|MRChangeAccess))
	require.Equal(t, base+4000, PinnedBytes(), "now it is")
	require.NoError(t, mr.Reregister(MRUpdate{Access: AccessLocalWrite | AccessOnDemand}, MRChangeAccess))
	require.Equal(t, base, PinnedBytes())
	require.NoError(t, mr.Reregister(MRUpdate{Access: AccessLocalWrite}, MRChangeAccess))
	require.Equal(t, base+4000, PinnedBytes())
	require.NoError(t, mr.Close())
	require.Equal(t, base, PinnedBytes())
}

// plainPD registers whatever it is asked to.
type plainPD struct{ PDDriver }

func (plainPD) AllocMR(length int, access Access, opt MROptions) (MRDriver, error) {
	return &plainMR{mem: make([]byte, length)}, nil
}

type plainMR struct{ mem []byte }

func (m *plainMR) Bytes() []byte     { return m.mem }
func (m *plainMR) Addr() uint64      { return 1 << 20 }
func (m *plainMR) LKey() uint32      { return 1 }
func (m *plainMR) RKey() uint32      { return 1 }
func (m *plainMR) Deregister() error { return nil }

func (m *plainMR) Reregister(mem []byte, iova uint64, pd PDDriver, access Access, mask MRChange) error {
	if mem != nil {
		m.mem = mem
	}
	return nil
}

// A kernel keeps an object whose destruction fails.
func TestMemoryThatTheDeviceKeepsCountsUntilItLetsGo(t *testing.T) {
	before := PinnedBytes()
	ctx := reregistering()
	drivers := [2]keeping{{answer: errKept}, {answer: errKept}}
	var mrs [2]*MR
	for i := range mrs {
		mrs[i] = &MR{pd: &PD{ctx: ctx}, drv: &drivers[i], pinned: 64}
		require.NoError(t, ctx.charge())
		require.True(t, ctx.keep(mrs[i]))
		require.NoError(t, pin(64))
		for range 2 {
			require.ErrorIs(t, mrs[i].Close(), errKept)
		}
	}
	require.Equal(t, before+128, PinnedBytes())
	require.Equal(t, 2, ctx.Objects())
	drivers[0].answer = nil
	require.NoError(t, mrs[0].Close())
	require.NoError(t, mrs[0].Close())
	require.Equal(t, before+64, PinnedBytes())
	require.Equal(t, 1, ctx.Objects())
	require.NoError(t, ctx.Close())
	require.Equal(t, before, PinnedBytes())
}

// keeping is a region, or another object, that its device may not let go of.
type keeping struct {
	MRDriver
	CQDriver
	SRQDriver
	answer error
}

var errKept = errors.New("permission denied")

func (k *keeping) Deregister() error { return k.answer }

func (k *keeping) Destroy() error { return k.answer }

// It counts, and events are about it, until it is destroyed.
func TestAnObjectThatTheDeviceKeepsIsOpen(t *testing.T) {
	ctx := reregistering()
	ctx.cqs, ctx.srqs = make(map[CQDriver]*CQ), make(map[SRQDriver]*SRQ)
	drv := &keeping{}
	pd := &PD{ctx: ctx}
	cq, srq := &CQ{ctx: ctx, drv: drv}, &SRQ{pd: pd, drv: drv}
	ctx.cqs[drv], ctx.srqs[drv] = cq, srq
	closes := []func() error{cq.Close, srq.Close, (&AH{pd: pd, drv: drv}).Close}
	for range closes {
		require.NoError(t, ctx.charge())
	}
	for _, end := range closes {
		for _, drv.answer = range []error{errKept, ErrBusy} {
			require.ErrorIs(t, end(), drv.answer)
		}
	}
	require.Equal(t, len(closes), ctx.Objects())
	require.Equal(t, cq, ctx.cqs[drv])
	require.Equal(t, srq, ctx.srqs[drv])
	for _, end := range closes {
		for _, drv.answer = range []error{nil, ErrClosed} {
			require.NoError(t, end())
		}
	}
	require.Zero(t, ctx.Objects())
	require.Empty(t, ctx.cqs)
	require.Empty(t, ctx.srqs)
}
