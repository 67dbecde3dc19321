package rdmahost

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

// Device is an RDMA device as it is found before it is opened.
type Device struct {
	Name      string // "rxe0"
	Index     int    // the kernel's number of the device, by which rdma_cm names it; -1 if unknown
	Node      string // its character device, "uverbs0"; empty if ib_uverbs does not serve it
	Major     uint32 // device number of the character device
	Minor     uint32
	ABI       uint32   // version of the driver's part of the command ABI
	DriverID  DriverID // goes into each command header
	Driver    string   // "rxe", "siw", "mlx5"; empty if unknown
	NodeType  uint8    // enum ib_node_type: 1 CA, 4 RNIC (iWARP)
	NodeGUID  uint64   // big-endian GUID as a number
	Transport verbs.Transport
	Ports     int
	Firmware  string
}

// DriverID is enum rdma_driver_id (rdma/ib_user_ioctl_verbs.h).
type DriverID uint32

// Drivers of devices that are software, which sysfs shows by other signs than a PCI device.
const (
	DriverRXE DriverID = 14
	DriverSIW DriverID = 18

	driverUnknown DriverID = 0
)

// driverNames are the short names of the kernel's drivers, by DriverID.
var driverNames = [...]string{
	1: "mlx5", 2: "mlx4", 3: "cxgb3", 4: "cxgb4", 5: "mthca", 6: "bnxt_re", 7: "ocrdma",
	8: "nes", 9: "irdma", 10: "vmw_pvrdma", 11: "qedr", 12: "hns", 13: "usnic",
	DriverRXE: "rxe", 15: "hfi1", 16: "qib", 17: "efa", DriverSIW: "siw",
	19: "erdma", 20: "mana", 21: "ionic",
}

// String names the driver as its kernel module does, without suffixes.
func (id DriverID) String() string {
	if uint64(id) < uint64(len(driverNames)) {
		return driverNames[id]
	}
	return ""
}

// driverByName is the inverse of DriverID.String. It also knows the modules'
// own names, for instance mlx5_core and hns_roce.
func driverByName(name string) DriverID {
	for id, known := range driverNames {
		if known != "" && (name == known || strings.HasPrefix(name, known+"_")) {
			return DriverID(id)
		}
	}
	return driverUnknown
}

// Node types (enum ib_node_type; RDMA_NODE_* of rdma/ib_verbs.h).
const (
	nodeCA   = 1
	nodeRNIC = 4
)

// Devices lists the RDMA devices of this host, ordered by name. A host
// without the RDMA subsystem has none, which is not an error.
//
// Netlink comes first: it respects network namespaces, makes the kernel load
// ib_uverbs, and names the driver. sysfs stands in where it does not answer.
func Devices() ([]Device, error) {
	list, err := netlinkDevices()
	if err != nil {
		list, err = thisHost.devices()
	}
	if err != nil {
		return nil, fmt.Errorf("look for RDMA devices: %w", err)
	}
	for i := range list {
		thisHost.complete(&list[i])
	}
	slices.SortFunc(list, func(a, b Device) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// Info is what package verbs calls the device.
func (d *Device) Info() verbs.DeviceInfo {
	return verbs.DeviceInfo{Name: d.Name, Provider: ProviderName, Transport: d.Transport, Driver: d.Driver, NodeGUID: d.NodeGUID}
}

// Open opens the character device for commands and mappings. Names in /dev
// are udev's choice, so the node is taken only if its number is the device's.
func (d *Device) Open() (fd int, err error) {
	if d.Node == "" {
		return -1, fmt.Errorf("%w: device %s has no uverbs node: modprobe ib_uverbs", verbs.ErrNoDevice, d.Name)
	}
	fd, err = d.openNode("/dev/infiniband/" + d.Node)
	if err != nil {
		var err2 error
		if fd, err2 = d.openNode(fmt.Sprintf("/dev/char/%d:%d", d.Major, d.Minor)); err2 == nil {
			return fd, nil
		}
		return -1, err
	}
	return fd, nil
}

var errOtherNode = errors.New("is not the node of this device")

func (d *Device) openNode(path string) (int, error) {
	// The kernel maps queues only through a descriptor that may write.
	fd, err := openRetry(path, unix.O_RDWR|unix.O_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("open %s of device %s: %w", path, d.Name, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("stat %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || uint64(st.Rdev) != unix.Mkdev(d.Major, d.Minor) {
		unix.Close(fd)
		return -1, fmt.Errorf("%s %w (%s is %d:%d)", path, errOtherNode, d.Name, d.Major, d.Minor)
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
