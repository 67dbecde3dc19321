package uverbs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPortIsDescribedInTheKernelsWords(t *testing.T) {
	h := rxeHost().with(classInfiniband+"/rxe0/ports/1", machine{"phys_state": "5: LinkUp", "rate": "2.5 Gb/sec (1X SDR)"}).host()
	require.Equal(t, PortDescription{
		Port: 1, State: "ACTIVE", PhysState: "LinkUp", LinkLayer: "Ethernet", Rate: "2.5 Gb/sec (1X SDR)", Netdev: "dummy0",
	}, h.port("rxe0", 1))
	require.Equal(t, PortDescription{Port: 2}, h.port("rxe0", 2))
	require.Equal(t, "odd", numbered("odd"))
}

func TestDemandedDevicesAreDescribed(t *testing.T) {
	want := demanded(t)
	list, err := Describe()
	require.NoError(t, err)
	described := make(map[string]Description)
	for _, d := range list {
		described[d.Name] = d
	}
	for _, name := range want {
		d := described[name]
		require.True(t, d.Drivable, "%+v", list)
		require.FileExists(t, d.Node)
		require.Len(t, d.Ports, 1)
		p := d.Ports[0]
		require.Equal(t, "ACTIVE", p.State)
		require.Equal(t, "Ethernet", p.LinkLayer)
		require.NotEmpty(t, p.Netdev)
		require.NotEmpty(t, p.GIDs)
	}
}
