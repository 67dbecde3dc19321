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
// and then sends messages of 100 bytes, ten if it is not told, or ends when it has got as many.

func TestAMckeyReceiverGetsWhatIsSent(t *testing.T) {
	overDatagrams(t, func(t *testing.T, f *cmtest.Fabric) {
		d := f.NewDatagrams(t)
		group := f.MustJoin(d, rcm.JoinParam{SendOnly: true}).Destination()
		receiver := mckey(t, f)
		ended := make(chan error, 1)
		go func() { ended <- receiver.wait() }()
		for running := true; running; {
			// A message may be lost, and what comes on top of ten is dropped.
			d.SendTo(group, strings.Repeat("x", 100))
			select {
			case err := <-ended: // it has its messages, or time is up
				require.NoError(t, err)
				running = false
			case <-time.After(20 * time.Millisecond):
			}
		}
		require.Contains(t, receiver.said(), "data transfers complete")
		require.Contains(t, receiver.said(), "return status 0")
	})
}

// The C program destroys its QP as soon as it has posted the last message, and what rxe has not
// sent by then is lost: of ten that may be all.
func TestWhatMckeySendsIsReceived(t *testing.T) {
	overDatagrams(t, func(t *testing.T, f *cmtest.Fabric) {
		d := f.NewDatagrams(t)
		m := f.MustJoin(d, d.Group())
		for deadline := time.Now().Add(cmtest.Timeout); ; {
			sender := mckey(t, f, "-s", "-C", "1000") // the first of so many get through
			require.NoError(t, sender.wait())
			require.Contains(t, sender.said(), "return status 0")
			if message, ok := d.Arrived(); ok {
				require.Len(t, message.Text, 100)
				break
			}
			require.True(t, time.Now().Before(deadline), "nothing comes")
		}
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
