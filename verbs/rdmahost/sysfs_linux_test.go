package rdmahost

import (
	"io/fs"
	"math"
	"path"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// machine is the file system of a host that tests describe: path without
// leading slash, content.
type machine map[string]string

func (m machine) host() host {
	files := make(fstest.MapFS)
	for name, content := range m {
		files[name] = &fstest.MapFile{Data: []byte(content + "\n"), Mode: 0o444}
	}
	return host{files}
}

// with returns m and the files of dir.
func (m machine) with(dir string, files machine) machine {
	all := make(machine)
	for name, content := range m {
		all[name] = content
	}
	for name, content := range files {
		all[path.Join(dir, name)] = content
	}
	return all
}

// rxeHost is what kernel 6.1 shows of rxe0 on dummy0 with 10.0.0.1/24.
func rxeHost() machine {
	return machine{}.with(classVerbs, machine{
		"abi_version":         "6",
		"uverbs0/ibdev":       "rxe0",
		"uverbs0/dev":         "231:192",
		"uverbs0/abi_version": "2",
	}).with(classInfiniband+"/rxe0", machine{
		"node_type":                     "1: CA",
		"node_guid":                     "5054:00ff:fe12:3456",
		"node_desc":                     "rxe",
		"fw_ver":                        "",
		"ports/1/state":                 "4: ACTIVE",
		"ports/1/link_layer":            "Ethernet",
		"ports/1/gids/0":                "fe80:0000:0000:0000:5054:00ff:fe12:3456",
		"ports/1/gids/1":                "0000:0000:0000:0000:0000:ffff:0a00:0001",
		"ports/1/gids/2":                "0000:0000:0000:0000:0000:0000:0000:0000",
		"ports/1/gids/10":               "fd00:0000:0000:0000:0000:0000:0000:0001",
		"ports/1/gid_attrs/types/0":     "RoCE v2",
		"ports/1/gid_attrs/types/1":     "RoCE v2",
		"ports/1/gid_attrs/types/10":    "IB/RoCE v1",
		"ports/1/gid_attrs/ndevs/0":     "dummy0",
		"ports/1/gid_attrs/ndevs/1":     "dummy0",
		"ports/1/hw_counters/sent_pkts": "12",
		"ports/1/hw_counters/rcvd_pkts": "34",
		"ports/1/hw_counters/lifespan":  "10",
	}).with("sys/class/net/dummy0/statistics", machine{
		"rx_bytes": "1000", "tx_bytes": "2000", "rx_packets": "5", "tx_packets": "6",
	})
}

func siwHost() machine {
	return machine{}.with(classVerbs, machine{
		"abi_version":         "6",
		"uverbs1/ibdev":       "iwarp_lo",
		"uverbs1/dev":         "231:193",
		"uverbs1/abi_version": "1",
	}).with(classInfiniband+"/iwarp_lo", machine{
		"node_type":          "4: RNIC",
		"node_guid":          "0200:00ff:fe00:0001",
		"node_desc":          "Software iWARP stack",
		"fw_ver":             "",
		"ports/1/state":      "4: ACTIVE",
		"ports/1/link_layer": "Ethernet",
		"ports/1/gids/0":     "0200:0000:0001:0000:0000:0000:0000:0000",
	}).with("sys/class/net/lo/statistics", machine{
		"rx_bytes": "7", "tx_bytes": "8", "rx_packets": "1", "tx_packets": "2",
	})
}

func TestSysfsTellsWhatOpeningNeeds(t *testing.T) {
	for _, c := range []struct {
		name string
		host machine
		want Device
	}{
		{"rxe", rxeHost(), Device{
			Name: "rxe0", Index: -1, Node: "uverbs0", Major: 231, Minor: 192, ABI: 2,
			DriverID: DriverRXE, Driver: "rxe", NodeType: nodeCA, NodeGUID: 0x505400fffe123456,
			Transport: verbs.TransportRoCE, Ports: 1,
		}},
		{"siw under a name of the user's choice", siwHost(), Device{
			Name: "iwarp_lo", Index: -1, Node: "uverbs1", Major: 231, Minor: 193, ABI: 1,
			DriverID: DriverSIW, Driver: "siw", NodeType: nodeRNIC, NodeGUID: 0x020000fffe000001,
			Transport: verbs.TransportIWARP, Ports: 1,
		}},
		{"InfiniBand adapter that ib_uverbs does not serve", machine{
			classInfiniband + "/mlx5_0/node_type":          "1: CA",
			classInfiniband + "/mlx5_0/fw_ver":             "16.35.2000",
			classInfiniband + "/mlx5_0/ports/1/link_layer": "InfiniBand",
			classInfiniband + "/mlx5_0/ports/2/link_layer": "InfiniBand",
		}, Device{
			Name: "mlx5_0", Index: -1, DriverID: 1, Driver: "mlx5", NodeType: nodeCA,
			Transport: verbs.TransportIB, Ports: 2, Firmware: "16.35.2000",
		}},
		{"command ABI of another age", machine{
			classVerbs + "/abi_version":      "5",
			classVerbs + "/uverbs0/ibdev":    "x",
			classVerbs + "/uverbs0/dev":      "1:2",
			classInfiniband + "/x/node_type": "nonsense",
			classInfiniband + "/x/node_guid": "1:2:3",
		}, Device{Name: "x", Index: -1, Transport: verbs.TransportIB}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := c.host.host()
			list, err := h.devices()
			require.NoError(t, err)
			require.Len(t, list, 1)
			h.complete(&list[0])
			require.Equal(t, c.want, list[0])
		})
	}
}

func TestHostWithoutRDMAHasNoDevices(t *testing.T) {
	list, err := machine{"proc/self/status": ""}.host().devices()
	require.NoError(t, err)
	require.Empty(t, list)
}

func TestDriverIsGuessedFromTheParentsModule(t *testing.T) {
	files := fstest.MapFS{
		classInfiniband + "/rocep1s0/node_desc":     {Data: []byte("host1 mlx5_0\n")},
		classInfiniband + "/rocep1s0/device/driver": {Data: []byte("../../bus/pci/drivers/mlx5_core"), Mode: fs.ModeSymlink},
		classInfiniband + "/rocep2s0/device/driver": {Data: []byte("../../bus/pci/drivers/bnxt_en"), Mode: fs.ModeSymlink},
		classInfiniband + "/strange/device/driver":  {Data: []byte("../../bus/pci/drivers/fancy_rdma"), Mode: fs.ModeSymlink},
	}
	id, name := host{files}.guessDriver("rocep1s0")
	require.Equal(t, "mlx5", id.String())
	require.Equal(t, "mlx5", name)
	id, name = host{files}.guessDriver("rocep2s0")
	require.Equal(t, "bnxt_re", id.String())
	require.Equal(t, "bnxt_re", name)
	id, name = host{files}.guessDriver("strange")
	require.Equal(t, driverUnknown, id)
	require.Equal(t, "fancy_rdma", name)
}

func TestEveryDriverNameLeadsToItsNumber(t *testing.T) {
	for id := DriverID(1); int(id) < len(driverNames); id++ {
		require.Equal(t, id, driverByName(id.String()))
		require.Equal(t, id, driverByName(id.String()+"_core"))
	}
	require.Equal(t, driverUnknown, driverByName(""))
	require.Empty(t, DriverID(math.MaxUint32).String())
}

func TestFileNamesDoNotLeaveTheirDirectory(t *testing.T) {
	for _, bad := range []string{"", ".", "..", "a/b", "/a", "../a", "a\x00"} {
		require.False(t, isFileName(bad), "%q", bad)
	}
	require.True(t, isFileName("uverbs0"))
}

func TestOpenTakesOnlyTheNodeOfTheDevice(t *testing.T) {
	const null = "/dev/null"
	d := Device{Name: "null0", Node: "uverbs4095", Major: 1, Minor: 3}
	fd, err := d.openNode(null)
	require.NoError(t, err)
	require.NoError(t, syscall.Close(fd))

	d.Minor = 4
	_, err = d.openNode(null)
	require.ErrorIs(t, err, errOtherNode)
	require.ErrorContains(t, err, "null0 is 1:4")
	_, err = d.openNode(t.TempDir())
	require.ErrorIs(t, err, syscall.EISDIR)

	_, err = d.Open()
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "/dev/infiniband/uverbs4095")
	d.Node = ""
	_, err = d.Open()
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	require.ErrorContains(t, err, "modprobe ib_uverbs")
}
