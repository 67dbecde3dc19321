package rdmahost

import "github.com/seed-b9b531af/ramjet/verbs"

// ProviderName is what [verbs.DeviceInfo] calls the provider of the kernel's
// devices, package uverbs.
const ProviderName = "uverbs"

// Description is what the kernel tells of a device to anybody, without opening
// it: enough to say why it cannot be opened.
type Description struct {
	verbs.DeviceInfo
	// Node is the path by which the device is opened; empty if the kernel's
	// module ib_uverbs does not serve it.
	Node     string
	NodeType string // "CA", or "RNIC" if it speaks iWARP
	Firmware string
	// Model and Board are what the maker calls the adapter ("MT4119",
	// "MT_0000000012"), Revision is that of its hardware. Software devices
	// have none of them.
	Model, Board, Revision string
	// SystemImageGUID is common to the devices of one adapter, 0 if unknown.
	SystemImageGUID uint64
	Ports           []PortDescription
}

// PortDescription is a port of a device. The texts are the kernel's.
type PortDescription struct {
	Port      uint8
	State     string // "ACTIVE", "DOWN", ...
	PhysState string // "LinkUp", "Disabled", ...
	LinkLayer string // "Ethernet" or "InfiniBand"
	Rate      string // "100 Gb/sec (4X EDR)"
	Netdev    string // the network interface below it, empty if there is none
	// LID is the port's address in an InfiniBand subnet, the first of 1<<LMC;
	// SMLID is the subnet manager's. All are 0 without a subnet manager, and
	// on Ethernet.
	LID, SMLID uint32
	LMC        uint8
	// Capabilities are the bits of PortInfo:CapabilityMask of the InfiniBand
	// specification, volume 1, 14.2.5.6.
	Capabilities uint32
	GIDs         []verbs.GIDEntry
}
