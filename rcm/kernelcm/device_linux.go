package kernelcm

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"golang.org/x/sys/unix"
)

// Device is a device of the kernel as far as connections are concerned.
type device struct {
	name      string
	port      uint8
	transport verbs.Transport
}

// deviceOf returns the device that an id is on: rdma_cm calls it by its index
// or its GUID, verbs.Open by its name. The error wraps ErrNoRoute if it is on
// none.
func deviceOf(a idAddr) (device, error) {
	if a.guid == ([8]byte{}) && a.port == 0 {
		return device{}, fmt.Errorf("%w: no RDMA device has it", rcm.ErrNoRoute)
	}
	name := ""
	if a.deviceIndex != noDeviceIndex {
		// Without netlink, or if the device is in another network
		// namespace, the GUID may still tell.
		name, _ = rdmahost.NameByIndex(a.deviceIndex)
	}
	if name == "" {
		var err error
		if name, err = rdmahost.NameByGUID(a.guid); err != nil {
			return device{}, noRouteIfGone(err)
		}
	}
	transport, err := rdmahost.PortTransport(name, a.port)
	return device{name: name, port: a.port, transport: transport}, noRouteIfGone(err)
}

// checkPort reports a port that cannot carry anything now: its interface or
// cable is down. The error wraps ErrNoRoute. The connection manager finds that
// out too, but only calls it a peer that does not answer.
func (d device) checkPort() error {
	state, active, err := rdmahost.PortState(d.name, d.port)
	if err != nil {
		return noRouteIfGone(err)
	}
	if !active {
		return fmt.Errorf("%w: port %d of %s is %s", rcm.ErrNoRoute, d.port, d.name, state)
	}
	return nil
}

// checkSpace reports a device that has no QPs for a port space. The error wraps ErrNoRoute.
func (d device) checkSpace(space portSpace) error {
	if space == portSpaceUDP && d.transport == verbs.TransportIWARP {
		return fmt.Errorf("%w: %s is an iWARP device, which has no datagrams: %w", rcm.ErrNoRoute, d.name, verbs.ErrUnsupported)
	}
	return nil
}

// noRouteIfGone makes ErrNoRoute of the error that a device is not there.
func noRouteIfGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", rcm.ErrNoRoute, err)
	}
	return err
}

// hostState returns the host's addresses, and a string that changes with them
// or with the RDMA devices. A new device may have the name of one that has just gone, but
// not its inode in sysfs, whose numbers go on since Linux 4.14 (__kernfs_new_node, fs/kernfs/dir.c).
func hostState() (state string, addrs []netip.Addr, err error) {
	if addrs, err = rdmahost.Addrs(); err != nil {
		return "", nil, err
	}
	names, err := rdmahost.Names()
	inodes := make([]uint64, len(names))
	for i, name := range names {
		var st unix.Stat_t
		if unix.Lstat("/sys/class/infiniband/"+name, &st) == nil { // not if it goes just now
			inodes[i] = st.Ino
		}
	}
	return fmt.Sprint(addrs, names, inodes), addrs, err
}
