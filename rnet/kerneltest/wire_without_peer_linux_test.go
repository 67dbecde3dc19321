package kerneltest

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/seed-b9b531af/ramjet/verbs"
)

func init() {
	roles.Add("poweroff", powerOff)
	roles.Add("call", callOver)
}

// powerOff ends this virtual machine, as pulling its plug would.
func powerOff([]string) error { return unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF) }

// callOver dials an address over a device once for each mode, tells the
// mode, and behaves.
func callOver(args []string) error {
	for _, mode := range []byte(args[2]) {
		c, err := wireDialer(args[0]).Dial("tcp", args[1])
		if err != nil {
			return err
		}
		if _, err := c.Write([]byte{mode}); err != nil {
			return err
		}
		go traffic.Behave(c, mode)
	}
	select {} // ended by a kill, or the machine's death
}

// The peer's machine may die without a word. It is the last test of this file's
// kind (go test goes by the names of files), because the others need the peer.
func TestWirePeersMachineDies(t *testing.T) {
	for _, k := range needsWire(t) {
		t.Run(k.name, func(t *testing.T) {
			leavesDevicesAlone(t)
			ln, err := wireListen(k.name)
			require.NoError(t, err)
			defer ln.Close()
			server := startOnPeer(t, "wireserve", k.name)
			address := server.line(t)
			startOnPeer(t, "call", k.name, ln.Addr().String(), traffic.AllModes)
			var b traffic.Waiters
			for _, mode := range []byte(traffic.AllModes) {
				b.Use(t, dialMode(t, wireDialer(k.name), address, mode), mode)
				c := acceptOne(t, ln)
				b.Use(t, c, traffic.ReadMode(t, c))
			}
			// Sessions that nobody uses have to end too.
			idle := dialMode(t, &rnet.Dialer{Transport: rnet.RDMA, Device: k.name, Dedicated: true}, address, traffic.Silent)
			b.Add(t, func() error { _, err := idle.Read(make([]byte, 1)); return err })
			begun := time.Now()
			askPeer(t, "poweroff") // the machine may die before it answers
			awaitLoss(t, &b, begun)

			begun = time.Now()
			_, err = (&rnet.Dialer{Transport: rnet.RDMA, Device: k.name, Timeout: 3 * time.Second}).Dial("tcp", address)
			require.Error(t, err)
			var timeout net.Error
			assert.ErrorAs(t, err, &timeout)
			t.Logf("a dial fails after %v: %v", time.Since(begun), err)

			begun = time.Now()
			_, err = wireDialer(k.name).Dial("tcp", address) // without a limit of its own
			require.Error(t, err)
			require.Regexp(t, `\[(handshake-timeout|no-device)\]`, err.Error())
			require.Less(t, time.Since(begun), setUpTime+slowness)
			t.Logf("one that sets no limit fails after %v: %v", time.Since(begun), err)

			// rxe keeps a QP until the packets are gone that it has sent, which
			// wait for the peer's hardware address; nobody else waits for that.
			begun = time.Now()
			for verbs.PinnedBytes() > 0 && time.Since(begun) < wirePatience {
				time.Sleep(100 * time.Millisecond)
			}
			require.Zero(t, verbs.PinnedBytes(), "bytes pinned %v after the loss", time.Since(begun))
			t.Logf("all is freed after another %v", time.Since(begun))
		})
		return // there is one peer only
	}
}
