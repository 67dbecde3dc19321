package rdmahost

import "time"

// Counter is a number that a device or its network interface counts up.
type Counter struct {
	Name  string // as the kernel names the file, for instance "duplicate_request"
	Value uint64
}

// PortCounters is what was counted on one port until Time.
type PortCounters struct {
	Device string
	Port   uint8
	Time   time.Time
	Netdev string // the network interface below the port, empty if there is none
	// Driver are the driver's own counters (hw_counters in sysfs), Standard
	// those that the InfiniBand Architecture Specification defines (section
	// 16.1.3.5, counters in sysfs). Both are ordered by name, and empty if
	// the driver has none.
	Driver   []Counter
	Standard []Counter
	Traffic  Traffic
}

// Traffic is what went through a port. InfiniBand adapters count it
// themselves; for software devices the network interface does, and counts
// what is not RDMA too.
type Traffic struct {
	RxBytes, TxBytes     uint64
	RxPackets, TxPackets uint64
	// BytesFrom and PacketsFrom say who counted: "counters" or "hw_counters"
	// of the device, or "netdev eth0". Empty: nobody, the numbers are zero.
	BytesFrom, PacketsFrom string
}
