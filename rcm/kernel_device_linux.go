package rcm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/seed-b9b531af/ramjet/verbs"
	"golang.org/x/sys/unix"
)

// What rdma_cm calls a device by its index or GUID has a name for verbs.Open.
// RDMA netlink knows the index (rdma/rdma_netlink.h), sysfs the GUID.

const sysfsDevices = "/sys/class/infiniband"

// kernelDevice is a device of the kernel as far as connections are concerned.
type kernelDevice struct {
	name      string
	port      uint8
	transport verbs.Transport
}

// deviceOf returns the device that an id is on. The error wraps ErrNoRoute if
// it is on none.
func deviceOf(a idAddr) (kernelDevice, error) {
	if a.guid == ([8]byte{}) && a.port == 0 {
		return kernelDevice{}, fmt.Errorf("%w: no RDMA device has it", ErrNoRoute)
	}
	name := ""
	if a.deviceIndex != noDeviceIndex {
		// Without netlink, or if the device is in another network
		// namespace, the GUID may still tell.
		name, _ = nameByIndex(a.deviceIndex)
	}
	if name == "" {
		var err error
		if name, err = nameByGUID(a.guid); err != nil {
			return kernelDevice{}, err
		}
	}
	transport, err := transportOf(name, a.port)
	return kernelDevice{name: name, port: a.port, transport: transport}, err
}

// checkPort reports a port that cannot carry anything now: its interface or
// cable is down. The error wraps ErrNoRoute. The connection manager finds that
// out too, but only calls it a peer that does not answer.
func (d kernelDevice) checkPort() error {
	state, err := sysfsLine(d.name, "ports", fmt.Sprint(d.port), "state")
	if err != nil {
		return err
	}
	if name, active := portState(state); !active {
		return fmt.Errorf("%w: port %d of %s is %s", ErrNoRoute, d.port, d.name, name)
	}
	return nil
}

// portState reads the state of a port, "4: ACTIVE" (enum ib_port_state). The
// only one after it is ACTIVE_DEFER, in which a port carries traffic too.
func portState(line string) (name string, active bool) {
	number, name, _ := strings.Cut(line, ": ")
	n, err := strconv.ParseUint(number, 10, 8)
	if err != nil || name == "" {
		return fmt.Sprintf("in state %q", line), false
	}
	return name, n >= 4
}

// kernelDevices lists the names of the host's RDMA devices. It is empty on a
// host that has none.
func kernelDevices() ([]string, error) {
	list, err := os.ReadDir(sysfsDevices)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	names := make([]string, len(list))
	for i, e := range list {
		names[i] = e.Name()
	}
	return names, err
}

// hasPort reports whether a device has a port. If that cannot be told it may
// have.
func hasPort(device string, port uint8) bool {
	_, err := os.Stat(filepath.Join(sysfsDevices, device, "ports", fmt.Sprint(port)))
	return !errors.Is(err, fs.ErrNotExist)
}

// nameByGUID finds the device with a node GUID.
func nameByGUID(guid [8]byte) (string, error) {
	names, err := kernelDevices()
	if err != nil {
		return "", fmt.Errorf("list RDMA devices: %w", err)
	}
	want := guidText(guid)
	for _, name := range names {
		// A device that has gone meanwhile is not the one.
		if got, err := sysfsLine(name, "node_guid"); err == nil && got == want {
			return name, nil
		}
	}
	return "", fmt.Errorf("%w: no device with node GUID %s in %s", ErrNoRoute, want, sysfsDevices)
}

// guidText writes a GUID as sysfs does.
func guidText(guid [8]byte) string {
	return fmt.Sprintf("%x:%x:%x:%x", guid[:2], guid[2:4], guid[4:6], guid[6:])
}

// transportOf says what a port speaks: an RNIC iWARP, a channel adapter
// InfiniBand or, on Ethernet, RoCE.
func transportOf(device string, port uint8) (verbs.Transport, error) {
	node, err := sysfsLine(device, "node_type")
	if err != nil {
		return 0, err
	}
	link, err := sysfsLine(device, "ports", fmt.Sprint(port), "link_layer")
	if err != nil {
		return 0, err
	}
	return transportBy(node, link), nil
}

func transportBy(node, link string) verbs.Transport {
	const rnic = "4:" // enum rdma_node_type, "4: RNIC"
	switch {
	case strings.HasPrefix(node, rnic):
		return verbs.TransportIWARP
	case link == "Ethernet":
		return verbs.TransportRoCE
	}
	return verbs.TransportIB
}

// sysfsLine reads one line about a device. The error wraps ErrNoRoute if there
// is none: the device has gone.
func sysfsLine(path ...string) (string, error) {
	b, err := os.ReadFile(filepath.Join(sysfsDevices, filepath.Join(path...)))
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV):
		return "", fmt.Errorf("%w: %w", ErrNoRoute, err)
	case err != nil:
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}

// Messages of RDMA netlink: client RDMA_NL_NLDEV, commands and attributes of
// enum rdma_nldev_command and rdma_nldev_attr.
const (
	nldevGet           = 5<<10 + 1
	nldevGetChardev    = 5<<10 + 15
	nldevAttrDevIndex  = 1  // u32
	nldevAttrDevName   = 2  // string
	nldevAttrCharType  = 69 // string
	nldevAttrCharDev   = 72 // u64
	netlinkHeaderSize  = 16
	netlinkAttrSize    = 4
	nlaTypeMask        = 0x3fff // without NLA_F_NESTED and NLA_F_NET_BYTEORDER
	maxNetlinkResponse = 16 << 10
)

// nameByIndex asks netlink for the name of a device.
func nameByIndex(index uint32) (string, error) {
	value := binary.NativeEndian.AppendUint32(nil, index)
	attrs, err := askNetlink(nldevGet, nldevAttrDevIndex, value)
	if err != nil {
		return "", fmt.Errorf("RDMA netlink: device %d: %w", index, err)
	}
	name, _, _ := strings.Cut(string(attrs[nldevAttrDevName]), "\x00")
	if name == "" || filepath.Base(name) != name {
		return "", fmt.Errorf("RDMA netlink: device %d: no name", index)
	}
	return name, nil
}

// loadUCM asks the kernel for its connection manager, which makes it load
// module rdma_ucm, and reports whether it is there now.
func loadUCM() bool {
	attrs, err := askNetlink(nldevGetChardev, nldevAttrCharType, []byte("rdma_cm\x00"))
	return err == nil && len(attrs[nldevAttrCharDev]) > 0
}

// askNetlink sends one request with one attribute and returns the attributes
// of the answer.
func askNetlink(msg uint16, attr uint16, value []byte) (map[uint16][]byte, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_RDMA)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	order := binary.NativeEndian
	length := netlinkHeaderSize + netlinkAttrSize + len(value)
	b := order.AppendUint32(nil, uint32(length))
	b = order.AppendUint16(b, msg)
	b = order.AppendUint16(b, unix.NLM_F_REQUEST)
	b = append(b, make([]byte, 8)...) // sequence, port
	b = order.AppendUint16(b, uint16(netlinkAttrSize+len(value)))
	b = order.AppendUint16(b, attr)
	b = append(b, value...)
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("sendto", err)
	}
	response := make([]byte, maxNetlinkResponse)
	// The kernel answered during sendto; if it has not, there is no answer.
	n, _, err := unix.Recvfrom(fd, response, unix.MSG_DONTWAIT)
	if err != nil {
		return nil, os.NewSyscallError("recvfrom", err)
	}
	return parseNetlink(response[:n], msg)
}

// parseNetlink reads the answer to a request: one message with attributes, or
// an error.
func parseNetlink(b []byte, msg uint16) (map[uint16][]byte, error) {
	order := binary.NativeEndian
	if len(b) < netlinkHeaderSize {
		return nil, fmt.Errorf("%w: netlink message of %d bytes", ErrMalformed, len(b))
	}
	length := order.Uint32(b)
	if length < netlinkHeaderSize || uint64(length) > uint64(len(b)) {
		return nil, fmt.Errorf("%w: netlink message of %d bytes in %d", ErrMalformed, length, len(b))
	}
	typ := order.Uint16(b[4:])
	b = b[netlinkHeaderSize:length]
	switch {
	case typ == unix.NLMSG_ERROR && len(b) >= 4:
		if errno := -int32(order.Uint32(b)); errno > 0 {
			return nil, unix.Errno(errno)
		}
		return nil, fmt.Errorf("%w: netlink acknowledgement", ErrMalformed)
	case typ != msg:
		return nil, fmt.Errorf("%w: netlink message %#x", ErrMalformed, typ)
	}
	return netlinkAttrs(b)
}

// netlinkAttrs reads the attributes that follow each other in b. Of several of
// one type it has the last.
func netlinkAttrs(b []byte) (map[uint16][]byte, error) {
	order := binary.NativeEndian
	attrs := make(map[uint16][]byte)
	for len(b) >= netlinkAttrSize {
		n := int(order.Uint16(b))
		if n < netlinkAttrSize || n > len(b) {
			return nil, fmt.Errorf("%w: netlink attribute of %d bytes in %d", ErrMalformed, n, len(b))
		}
		attrs[order.Uint16(b[2:])&nlaTypeMask] = b[netlinkAttrSize:n]
		b = b[min((n+3)&^3, len(b)):]
	}
	return attrs, nil
}
