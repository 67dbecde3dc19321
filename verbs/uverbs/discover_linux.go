package uverbs

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// deviceEntry is an RDMA device as it is found before it is opened.
type deviceEntry struct {
	name      string // "rxe0"
	index     int    // the kernel's number of the device, by which rdma_cm names it; -1 if unknown
	uverbs    string // its character device, "uverbs0"; empty if ib_uverbs does not serve it
	major     uint32 // device number of the character device
	minor     uint32
	abi       uint32   // version of the driver's part of the command ABI
	driverID  driverID // goes into each command header
	driver    string   // "rxe", "siw", "mlx5"; empty if unknown
	nodeType  uint8    // enum ib_node_type: 1 CA, 4 RNIC (iWARP)
	nodeGUID  uint64   // big-endian GUID as a number
	transport verbs.Transport
	ports     int
	firmware  string
}

// driverID is enum rdma_driver_id (rdma/ib_user_ioctl_verbs.h).
type driverID uint32

const (
	driverUnknown driverID = 0
	driverRXE     driverID = 14
	driverSIW     driverID = 18
)

// driverNames are the short names of the kernel's drivers, by driverID.
var driverNames = [...]string{
	1: "mlx5", 2: "mlx4", 3: "cxgb3", 4: "cxgb4", 5: "mthca", 6: "bnxt_re", 7: "ocrdma",
	8: "nes", 9: "irdma", 10: "vmw_pvrdma", 11: "qedr", 12: "hns", 13: "usnic",
	driverRXE: "rxe", 15: "hfi1", 16: "qib", 17: "efa", driverSIW: "siw",
	19: "erdma", 20: "mana", 21: "ionic",
}

// String names the driver as its kernel module does, without suffixes.
func (id driverID) String() string {
	if uint64(id) < uint64(len(driverNames)) {
		return driverNames[id]
	}
	return ""
}

// driverByName is the inverse of driverID.String. It also knows the modules'
// own names, for instance mlx5_core and hns_roce.
func driverByName(name string) driverID {
	for id, known := range driverNames {
		if known != "" && (name == known || strings.HasPrefix(name, known+"_")) {
			return driverID(id)
		}
	}
	return driverUnknown
}

// Node types (enum ib_node_type; RDMA_NODE_* of rdma/ib_verbs.h).
const (
	nodeCA   = 1
	nodeRNIC = 4
)

// discover lists the RDMA devices of this host, ordered by name. A host
// without the RDMA subsystem has none, which is not an error.
//
// Netlink comes first: it respects network namespaces, makes the kernel load
// ib_uverbs, and names the driver. sysfs stands in where it does not answer.
func discover() ([]deviceEntry, error) {
	list, err := netlinkDevices()
	if err != nil {
		list, err = thisHost.devices()
	}
	if err != nil {
		return nil, fmt.Errorf("uverbs: look for devices: %w", err)
	}
	for i := range list {
		thisHost.complete(&list[i])
	}
	slices.SortFunc(list, func(a, b deviceEntry) int { return cmp.Compare(a.name, b.name) })
	return list, nil
}

// open opens the character device for commands and mappings. Names in /dev
// are udev's choice, so the node is taken only if its number is the device's.
func (d *deviceEntry) open() (fd int, err error) {
	if d.uverbs == "" {
		return -1, fmt.Errorf("%w: device %s has no uverbs node: modprobe ib_uverbs", verbs.ErrNoDevice, d.name)
	}
	fd, err = d.openNode("/dev/infiniband/" + d.uverbs)
	if err != nil {
		var err2 error
		if fd, err2 = d.openNode(fmt.Sprintf("/dev/char/%d:%d", d.major, d.minor)); err2 == nil {
			return fd, nil
		}
		return -1, err
	}
	return fd, nil
}

var errOtherNode = errors.New("is not the node of this device")

func (d *deviceEntry) openNode(path string) (int, error) {
	// The kernel maps queues only through a descriptor that may write.
	fd, err := openRetry(path, unix.O_RDWR|unix.O_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open %s of device %s: %w", path, d.name, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("stat %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || uint64(st.Rdev) != unix.Mkdev(d.major, d.minor) {
		unix.Close(fd)
		return -1, fmt.Errorf("%s %w (%s is %d:%d)", path, errOtherNode, d.name, d.major, d.minor)
	}
	return fd, nil
}

func openRetry(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// transportOf decides from the protocol that netlink names, or else from the
// kind of node and the link layer of its first port.
func transportOf(protocol string, nodeType uint8, linkLayer string) verbs.Transport {
	switch {
	case protocol == "iw" || protocol == "" && nodeType == nodeRNIC:
		return verbs.TransportIWARP
	case protocol == "roce" || protocol == "" && linkLayer == "Ethernet":
		return verbs.TransportRoCE
	}
	return verbs.TransportIB
}

// parseDevNumber reads "231:192".
func parseDevNumber(text string) (major, minor uint32, err error) {
	a, b, ok := strings.Cut(text, ":")
	ma, errA := strconv.ParseUint(a, 10, 32)
	mi, errB := strconv.ParseUint(b, 10, 32)
	if !ok || errA != nil || errB != nil {
		return 0, 0, fmt.Errorf("device number %q is not major:minor", text)
	}
	return uint32(ma), uint32(mi), nil
}
