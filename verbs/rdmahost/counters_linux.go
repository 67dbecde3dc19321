package rdmahost

import (
	"fmt"
	"path"
	"strconv"
	"time"
)

// The directories of counters below a port and below a network interface.
const (
	driverCounters   = "hw_counters"
	standardCounters = "counters"
	netdevCounters   = "statistics"
)

// dataUnit is what port_xmit_data and port_rcv_data count: four bytes
// (InfiniBand Architecture Specification, section 16.1.3.5).
const dataUnit = 4

// ReadCounters reads the counters of a port of a device. It opens a file for
// each, which is cheap enough to do every second.
func ReadCounters(device string, port uint8) (PortCounters, error) {
	netdev := thisHost.netdev(device, port)
	if netdev == "" {
		// iWARP devices have no such rows in their GID tables before 6.5.
		netdev = netlinkNetdev(device, port)
	}
	c, err := thisHost.counters(device, port, netdev)
	if err != nil {
		return PortCounters{}, fmt.Errorf("read RDMA counters of %s port %d: %w", device, port, err)
	}
	return c, nil
}

// rnrCounter is rxe's count of the RNR NAKs that it received (rxe_counter_descs,
// drivers/infiniband/sw/rxe/rxe_hw_counters.c). iWARP has no RNR, and siw no
// counters.
const rnrCounter = "rcvd_rnr_err"

// RNRs reads the driver's counter of a device, of all its ports. counted is
// false if it does not count.
func RNRs(device string) (count uint64, counted bool) { return thisHost.rnrs(device) }

func (h host) rnrs(device string) (count uint64, counted bool) {
	for port := uint8(1); port < 255; port++ {
		text, err := h.text(h.portDir(device, port), driverCounters, rnrCounter)
		if err != nil {
			break // there are no more ports, it does not count, or it has gone
		}
		if n, err := strconv.ParseUint(text, 10, 64); err == nil {
			count, counted = count+n, true
		}
	}
	return count, counted
}

func (h host) counters(device string, port uint8, netdev string) (PortCounters, error) {
	dir := h.portDir(device, port)
	if _, err := h.text(dir, "state"); err != nil {
		return PortCounters{}, err
	}
	c := PortCounters{Device: device, Port: port, Time: time.Now(), Netdev: netdev}
	c.Driver = h.counterDir(dir, driverCounters)
	c.Standard = h.counterDir(dir, standardCounters)
	var below []Counter
	if netdev != "" {
		below = h.counterDir("sys/class/net", netdev, netdevCounters)
	}
	c.Traffic = trafficOf(&c, below)
	return c, nil
}

// counterDir reads a directory with one decimal number a file. What is no
// number (lifespan is a setting) or cannot be read is left out.
func (h host) counterDir(elem ...string) []Counter {
	dir := path.Join(elem...)
	names, _ := h.names(dir)
	var list []Counter
	for _, name := range names {
		if name == "lifespan" {
			continue
		}
		if v, err := strconv.ParseUint(h.textOr("", dir, name), 10, 64); err == nil {
			list = append(list, Counter{name, v})
		}
	}
	return list
}

// trafficOf takes bytes and packets from whoever is closest to the port and
// counts them.
func trafficOf(c *PortCounters, netdev []Counter) Traffic {
	var t Traffic
	sources := []struct {
		from     string
		counters []Counter
		rx, tx   string
		unit     uint64
		bytes    bool
	}{
		{standardCounters, c.Standard, "port_rcv_data", "port_xmit_data", dataUnit, true},
		{"netdev " + c.Netdev, netdev, "rx_bytes", "tx_bytes", 1, true},
		{standardCounters, c.Standard, "port_rcv_packets", "port_xmit_packets", 1, false},
		{driverCounters, c.Driver, "rcvd_pkts", "sent_pkts", 1, false},
		{"netdev " + c.Netdev, netdev, "rx_packets", "tx_packets", 1, false},
	}
	for _, s := range sources {
		rx, hasRx := find(s.counters, s.rx)
		tx, hasTx := find(s.counters, s.tx)
		switch {
		case !hasRx || !hasTx:
		case s.bytes && t.BytesFrom == "":
			t.RxBytes, t.TxBytes, t.BytesFrom = rx*s.unit, tx*s.unit, s.from
		case !s.bytes && t.PacketsFrom == "":
			t.RxPackets, t.TxPackets, t.PacketsFrom = rx, tx, s.from
		}
	}
	return t
}

func find(list []Counter, name string) (uint64, bool) {
	for _, c := range list {
		if c.Name == name {
			return c.Value, true
		}
	}
	return 0, false
}

// netdev reads the network interface below a port from the GID table, whose
// first row is the interface's own. It is empty if there is none.
func (h host) netdev(device string, port uint8) string {
	name := h.textOr("", h.portDir(device, port), "gid_attrs/ndevs/0")
	if !isFileName(name) {
		return ""
	}
	return name
}
