package rdmahost

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

func TestPortIsDescribedInTheKernelsWords(t *testing.T) {
	h := rxeHost().with(classInfiniband+"/rxe0/ports/1", machine{"phys_state": "5: LinkUp", "rate": "2.5 Gb/sec (1X SDR)"}).host()
	require.Equal(t, PortDescription{
		Port: 1, State: "ACTIVE", PhysState: "LinkUp", LinkLayer: "Ethernet", Rate: "2.5 Gb/sec (1X SDR)", Netdev: "dummy0",
	}, h.port("rxe0", 1))
	require.Equal(t, PortDescription{Port: 2}, h.port("rxe0", 2))
	require.Equal(t, "odd", numbered("odd"))
}

func TestInfiniBandAdapterIsDescribedWithoutOpeningIt(t *testing.T) {
	h := machine{}.with(classInfiniband+"/mlx5_0", machine{
		"node_type": "1: CA", "sys_image_guid": "ec0d:9a03:0000:0001", "hca_type": "MT4119", "board_id": "MT_0000000012", "hw_rev": "0",
		"ports/1/lid": "0x1a", "ports/1/sm_lid": "0x1", "ports/1/lid_mask_count": "2", "ports/1/cap_mask": "0x2651e84a", "ports/1/link_layer": "InfiniBand",
		"ports/2/lid": "0x1ffffffff", "ports/2/sm_lid": "", "ports/2/lid_mask_count": "256", "ports/2/cap_mask": "none",
	}).host()
	d := Description{DeviceInfo: verbs.DeviceInfo{Name: "mlx5_0"}}
	h.identify(&d)
	require.Equal(t, Description{
		DeviceInfo: verbs.DeviceInfo{Name: "mlx5_0"},
		NodeType:   "CA", SystemImageGUID: 0xec0d9a0300000001, Model: "MT4119", Board: "MT_0000000012", Revision: "0",
	}, d)
	require.Equal(t, PortDescription{Port: 1, LinkLayer: "InfiniBand", LID: 26, SMLID: 1, LMC: 2, Capabilities: 0x2651e84a}, h.port("mlx5_0", 1))
	require.Equal(t, PortDescription{Port: 2}, h.port("mlx5_0", 2), "numbers that are none count as 0")

	gone := Description{DeviceInfo: verbs.DeviceInfo{Name: "gone"}}
	h.identify(&gone)
	require.Equal(t, Description{DeviceInfo: verbs.DeviceInfo{Name: "gone"}}, gone)
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
		require.FileExists(t, d.Node)
		require.Contains(t, []string{"CA", "RNIC"}, d.NodeType)
		require.NotZero(t, d.SystemImageGUID)
		require.Len(t, d.Ports, 1)
		p := d.Ports[0]
		require.Equal(t, "ACTIVE", p.State)
		require.Equal(t, "Ethernet", p.LinkLayer)
		require.NotEmpty(t, p.Netdev)
		require.NotEmpty(t, p.GIDs)
	}
}
