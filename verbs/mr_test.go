package verbs

import (
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
