// Package testhost tells tests what RDMA devices the machine has that they run on: a virtual
// machine of verbs/guest, one of a pair of them, or a host of the model
// (verbs/uverbs/internal/model). Elsewhere it has none.
package testhost

import (
	"cmp"
	"os"
	"strings"
)

const (
	// DevicesVariable names the devices of the kernel that the machine has for tests,
	// "rxe0,siw0".
	DevicesVariable = "RAMJET_DEVICES"
	// PeerVariable has the address of the other machine, where there are two.
	PeerVariable = "RAMJET_PEER"
)

// Device is a device of the kernel.
type Device struct {
	Name string
	Host string // the address of this host that it serves, empty if that is not known
}

// hosts are the addresses that devices have in the virtual machine, and on a host of the model.
var hosts = map[string]string{"rxe0": "10.0.0.1", "siw0": "10.0.2.1", "mlx5_0": "10.77.0.1"}

// ends are the two ends of the wires between two machines, by the address of the other one.
var ends = map[string]string{
	"10.1.0.1": "10.1.0.2", "10.1.0.2": "10.1.0.1", "10.77.0.1": "10.77.0.2", "10.77.0.2": "10.77.0.1",
}

// Devices returns the devices that the machine has for tests.
func Devices() (list []Device) {
	for name := range strings.SplitSeq(os.Getenv(DevicesVariable), ",") {
		if name != "" {
			list = append(list, Device{name, cmp.Or(Address(), hosts[name])})
		}
	}
	return list
}

// Peer returns the address of the other machine, where there are two; empty elsewhere.
func Peer() string { return os.Getenv(PeerVariable) }

// Address returns the address of this machine's end of the wire, where there are two.
func Address() string { return ends[Peer()] }

// PlaysPeer reports whether this machine is the one of two that does what the other asks for.
func PlaysPeer() bool { return os.Getenv("RAMJET_ROLE") == "peer" }

// IsModel reports whether the machine is a host of the model.
func IsModel() bool { return os.Getenv("RAMJET_MODEL") != "" }
