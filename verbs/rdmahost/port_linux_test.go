package rdmahost

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

func TestPortsCarryTrafficInTheirActiveStates(t *testing.T) {
	for text, want := range map[string]bool{
		"0: NOP": false, "1: DOWN": false, "2: INIT": false, "3: ARMED": false, "4: ACTIVE": true, "5: ACTIVE_DEFER": true,
		"": false, ":": false, "-4: ACTIVE": false, "9999: ACTIVE": false, "ACTIVE": false, "3": false,
	} {
		name, active := portState(text)
		require.Equal(t, want, active, "%q", text)
		require.NotEmpty(t, name, "%q", text)
	}
}

func TestSysfsTellsWhatAPortSpeaks(t *testing.T) {
	ib := machine{classInfiniband + "/mlx5_0/node_type": "1: CA", classInfiniband + "/mlx5_0/ports/1/link_layer": "InfiniBand"}
	for _, c := range []struct {
		host   machine
		device string
		want   verbs.Transport
	}{{rxeHost(), "rxe0", verbs.TransportRoCE}, {siwHost(), "iwarp_lo", verbs.TransportIWARP}, {ib, "mlx5_0", verbs.TransportIB}} {
		got, err := c.host.host().portTransport(c.device, 1)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	_, err := ib.host().portTransport("mlx5_0", 2)
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = ib.host().portTransport("mlx5_1", 1)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// goingFS is of a device that is removed while its files are read.
type goingFS struct{ fs.FS }

func (goingFS) Open(string) (fs.File, error) { return nil, unix.ENODEV }

func TestADeviceThatGoesIsNotThere(t *testing.T) {
	_, err := host{goingFS{}}.portTransport("rxe0", 1)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestADeviceIsFoundByItsGUID(t *testing.T) {
	h := rxeHost().with(classInfiniband, machine{"broken/node_guid": "none", "other/node_guid": "0:0:0:1"}).host()
	name, err := h.nameByGUID([8]byte{0x50, 0x54, 0x00, 0xff, 0xfe, 0x12, 0x34, 0x56})
	require.NoError(t, err)
	require.Equal(t, "rxe0", name)
	_, err = h.nameByGUID([8]byte{1})
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "0100000000000000")
}

// FuzzSysfsPortState has sysfs say anything of a port: it is active only with a
// number that says so.
func FuzzSysfsPortState(f *testing.F) {
	f.Add("4: ACTIVE", "1: CA", "Ethernet")
	f.Add("1: DOWN", "4: RNIC", "")
	f.Add("4", ":", "InfiniBand")
	f.Fuzz(func(t *testing.T, state, node, link string) {
		if name, active := portState(state); active && !strings.ContainsAny(state[:1], "0123456789+") {
			t.Fatalf("%q is active, as %q", state, name)
		}
		h := machine{classInfiniband + "/x/node_type": node, classInfiniband + "/x/ports/1/link_layer": link}.host()
		_, err := h.portTransport("x", 1)
		require.NoError(t, err)
	})
}
