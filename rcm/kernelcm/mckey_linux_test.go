package kernelcm

import (
	"strings"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/stretchr/testify/require"
)

// Multicast groups with mckey of librdmacm's examples. It joins a group, waits for three seconds,
// and then sends ten messages of 100 bytes or looks whether it has got as many.

const mckeyMessages = 10

func TestAMckeyReceiverGetsWhatIsSent(t *testing.T) {
	overDatagrams(t, func(t *testing.T, f *cmtest.Fabric) {
		d := f.NewDatagrams(t)
		group := f.MustJoin(d, rcm.JoinParam{SendOnly: true}).Destination()
		receiver := mckey(t, f)
		for range mckeyMessages {
			d.SendTo(group, strings.Repeat("x", 100))
		}
		require.NoError(t, receiver.wait())
		require.Contains(t, receiver.said(), "data transfers complete")
		require.Contains(t, receiver.said(), "return status 0")
	})
}

func TestWhatMckeySendsIsReceived(t *testing.T) {
	overDatagrams(t, func(t *testing.T, f *cmtest.Fabric) {
		d := f.NewDatagrams(t)
		m := f.MustJoin(d, d.Group())
		sender := mckey(t, f, "-s")
		for range mckeyMessages {
			require.Len(t, d.Next().Text, 100)
		}
		require.NoError(t, sender.wait())
		require.Contains(t, sender.said(), "return status 0")
		require.NoError(t, m.Err())
	})
}

// mckey starts the C program, and waits until it is in the group.
func mckey(t *testing.T, f *cmtest.Fabric, args ...string) *program {
	t.Helper()
	p := startProgram(t, "mckey", append(args, "-b", f.Host.String(), "-m", f.GroupAddr(t).String())...)
	require.Eventually(t, func() bool { return strings.Contains(p.said(), "joined dgid") }, cmtest.Timeout, time.Millisecond, "mckey joins")
	return p
}
