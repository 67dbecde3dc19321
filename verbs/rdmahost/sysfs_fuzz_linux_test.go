package rdmahost

import (
	"errors"
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzSysfsCounters has anything in the files of counters and in the name of
// the interface: what is no number is left out, and no file is read that lies
// elsewhere.
func FuzzSysfsCounters(f *testing.F) {
	f.Add("port_rcv_data", "12", "dummy0", "4: ACTIVE")
	f.Add("port_xmit_data", strconv.FormatUint(math.MaxUint64, 10), "../../../etc", "")
	f.Add("lifespan", "10", "..", "N/A")
	f.Add("rcvd_pkts", "-1", "a/b", "4")
	f.Fuzz(func(t *testing.T, name, value, netdev, state string) {
		if !isFileName(name) {
			return // no directory lists it
		}
		const port = classInfiniband + "/rxe0/ports/1"
		h := rxeHost().with(port, machine{
			"state": state, "gid_attrs/ndevs/0": netdev,
			"hw_counters/" + name: value, "counters/" + name: value,
		}).host()
		below := h.netdev("rxe0", 1)
		require.True(t, below == "" || isFileName(below), "%q", below)
		c, err := h.counters("rxe0", 1, below)
		require.NoError(t, err)
		for _, list := range [][]Counter{c.Driver, c.Standard} {
			for _, counter := range list {
				require.NotEqual(t, "lifespan", counter.Name)
				if counter.Name == name {
					text, err := h.text(port, "hw_counters", name)
					require.NoError(t, err)
					n, err := strconv.ParseUint(text, 10, 64)
					require.NoError(t, err)
					require.Equal(t, n, counter.Value)
				}
			}
		}
	})
}

// FuzzSysfsPort has a device and its port say anything of themselves.
func FuzzSysfsPort(f *testing.F) {
	f.Add("4: ACTIVE", "Ethernet", "1: CA", "100 Gb/sec (4X EDR)", "0x0", "5054:00ff:fe12:3456")
	f.Add("ACTIVE", "", ":", "", "65536", "1:2:3")
	f.Add(": ", "InfiniBand", "99999999999: x", "-1", "-1", "")
	f.Fuzz(func(t *testing.T, state, link, node, rate, lid, guid string) {
		h := rxeHost().with(classInfiniband+"/rxe0", machine{
			"ports/1/state": state, "ports/1/phys_state": state, "ports/1/link_layer": link, "ports/1/rate": rate,
			"ports/1/lid": lid, "ports/1/sm_lid": lid, "ports/1/cap_mask": lid,
			"node_type": node, "sys_image_guid": guid, "hca_type": rate, "board_id": rate, "hw_rev": lid,
		}).host()
		p := h.port("rxe0", 1)
		require.EqualValues(t, 1, p.Port)
		var d Description
		d.Name = "rxe0"
		h.identify(&d)
		require.Equal(t, "rxe0", d.Name)
		e := Device{Name: "rxe0", Index: -1}
		h.complete(&e)
		require.Equal(t, 1, e.Ports)
	})
}

// FuzzSysfsNodes has anything in the directory of device files: no node is
// named that is not one element of a path.
func FuzzSysfsNodes(f *testing.F) {
	f.Add("uverbs0", "rxe0", "231:192", "root:x:0:0")
	f.Add("..", "rxe0", "231", "::")
	f.Add("issm0", "", ":", "")
	f.Add("rdma_cm", "rxe0", "4294967296:4294967296", "x:y:-1")
	f.Fuzz(func(t *testing.T, node, device, number, accounts string) {
		if !isFileName(node) {
			return // no directory lists it
		}
		h := rxeHost().with(classVerbs, machine{node + "/ibdev": device, node + "/dev": number}).with("", machine{
			nodeDir + "/" + node: "", "etc/passwd": accounts, "etc/group": accounts,
		}).host()
		for _, n := range h.nodes(func(string) error { return errors.New("nobody may open it") }) {
			require.Error(t, n.Err, "%+v", n)
		}
		h.account("etc/passwd", 0)
		d := Device{Name: device, Index: -1}
		h.findUverbs(&d)
		require.True(t, d.Node == "" || isFileName(d.Node), "%q", d.Node)
	})
}
