package uverbs

import "github.com/seed-b9b531af/ramjet/verbs"

// Description is what the kernel tells of a device to anybody, without opening
// it: enough to say why it cannot be opened.
type Description struct {
	verbs.DeviceInfo
	// Node is the path by which the device is opened; empty if the kernel's
	// module ib_uverbs does not serve it.
	Node     string
	Firmware string
	Drivable bool // this package has a driver for it
	Ports    []PortDescription
}

// PortDescription is a port of a device. The texts are the kernel's.
type PortDescription struct {
	Port      uint8
	State     string // "ACTIVE", "DOWN", ...
	PhysState string // "LinkUp", "Disabled", ...
	LinkLayer string // "Ethernet" or "InfiniBand"
	Rate      string // "100 Gb/sec (4X EDR)"
	Netdev    string // the network interface below it, empty if there is none
	GIDs      []verbs.GIDEntry
}
