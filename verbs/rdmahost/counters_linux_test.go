package rdmahost

import (
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTrafficComesFromWhoeverIsClosestToThePort(t *testing.T) {
	adapter := rxeHost().with(classInfiniband+"/rxe0/ports/1/counters", machine{
		"port_rcv_data": "100", "port_xmit_data": "200", "port_rcv_packets": "3", "port_xmit_packets": "4",
	})
	for _, c := range []struct {
		name   string
		host   machine
		device string
		netdev string
		want   Traffic
	}{
		{"an adapter counts words itself", adapter, "rxe0", "dummy0", Traffic{
			RxBytes: 400, TxBytes: 800, RxPackets: 3, TxPackets: 4, BytesFrom: "counters", PacketsFrom: "counters",
		}},
		{"rxe counts packets only", rxeHost(), "rxe0", "dummy0", Traffic{
			RxBytes: 1000, TxBytes: 2000, RxPackets: 34, TxPackets: 12, BytesFrom: "netdev dummy0", PacketsFrom: "hw_counters",
		}},
		{"siw counts nothing", siwHost(), "iwarp_lo", "lo", Traffic{
			RxBytes: 7, TxBytes: 8, RxPackets: 1, TxPackets: 2, BytesFrom: "netdev lo", PacketsFrom: "netdev lo",
		}},
		{"nobody counts", siwHost(), "iwarp_lo", "", Traffic{}},
		{"the interface is gone", siwHost(), "iwarp_lo", "eth9", Traffic{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.host.host().counters(c.device, 1, c.netdev)
			require.NoError(t, err)
			require.Equal(t, c.want, got.Traffic)
			require.Equal(t, c.netdev, got.Netdev)
			require.False(t, got.Time.IsZero())
		})
	}
}

func TestSettingsAndUnreadableFilesAreNoCounters(t *testing.T) {
	h := rxeHost().with(classInfiniband+"/rxe0/ports/1/hw_counters", machine{"broken": "n/a", "negative": "-1"}).host()
	got, err := h.counters("rxe0", 1, "")
	require.NoError(t, err)
	require.Equal(t, []Counter{{"rcvd_pkts", 34}, {"sent_pkts", 12}}, got.Driver)
	require.Empty(t, got.Standard)
}

func TestCountersOfAPortThatIsNotThere(t *testing.T) {
	_, err := rxeHost().host().counters("rxe0", 2, "")
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = ReadCounters("../../etc", 1)
	require.Error(t, err)
	_, err = ReadCounters("none0", 1)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, "none0 port 1")
}

func TestNetdevIsThatOfTheFirstRow(t *testing.T) {
	require.Equal(t, "dummy0", rxeHost().host().netdev("rxe0", 1))
	require.Empty(t, siwHost().host().netdev("iwarp_lo", 1))
	require.Empty(t, rxeHost().with(classInfiniband, machine{"rxe0/ports/1/gid_attrs/ndevs/0": "../lo"}).host().netdev("rxe0", 1))
}

func TestRNRsAreAddedUpOverPorts(t *testing.T) {
	two := rxeHost().with(classInfiniband+"/rxe0/ports", machine{"1/hw_counters/rcvd_rnr_err": "3", "2/hw_counters/rcvd_rnr_err": "4"})
	n, counted := two.host().rnrs("rxe0")
	require.True(t, counted)
	require.EqualValues(t, 7, n)
	_, counted = siwHost().host().rnrs("iwarp_lo")
	require.False(t, counted, "siw has no counters")
	_, counted = rxeHost().host().rnrs("rxe9")
	require.False(t, counted, "the device is gone")
}
