package rdmahost

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"golang.org/x/sys/unix"
)

// RDMA netlink (rdma/rdma_netlink.h). A message is a struct nlmsghdr, then
// attributes: u16 length, u16 type, value, padded to 4 bytes.
const (
	netlinkRDMA  = 20      // NETLINK_RDMA of linux/netlink.h
	nldevClient  = 5 << 10 // RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, 0)
	nldevGet     = nldevClient + 1
	nldevPortGet = nldevClient + 5
	nldevChardev = nldevClient + 15 // RDMA_NLDEV_CMD_GET_CHARDEV, kernel 5.3
)

// RDMA_NLDEV_ATTR_*.
const (
	nldevDevIndex     = 1  // u32
	nldevDevName      = 2  // string
	nldevPortIndex    = 3  // u32, from 1; in an answer to GET the number of ports
	nldevFWVersion    = 5  // string
	nldevNodeGUID     = 6  // u64
	nldevNodeType     = 14 // u8
	nldevNetdevName   = 51 // string
	nldevProtocol     = 67 // string: "ib", "roce", "iw", "opa", "usnic"
	nldevChardevType  = 69 // string
	nldevChardevName  = 70 // string
	nldevChardevABI   = 71 // u64
	nldevChardevDev   = 72 // u64, as huge_encode_dev of linux/kdev_t.h
	nldevUverbsDriver = 73 // u32; a few drivers have none
)

const (
	netlinkBuffer  = 64 << 10 // the kernel makes dump messages of at most 32 KiB
	netlinkTimeout = 2        // seconds
	// A dump is interrupted when a device comes or goes meanwhile.
	netlinkAttempts = 5
)

var (
	errNetlink     = errors.New("malformed netlink message")
	errInterrupted = errors.New("netlink dump was interrupted by a change")
)

// netlinkDevices asks the kernel for all devices of this network namespace.
func netlinkDevices() ([]Device, error) {
	s, err := dialNetlink()
	if err != nil {
		return nil, err
	}
	defer s.close()
	var list []Device
	for range netlinkAttempts {
		list = nil
		err = s.request(nldevGet, unix.NLM_F_DUMP, nil, func(attrs []byte) {
			if d, ok := parseDevice(attrs); ok {
				list = append(list, d)
			}
		})
		if err != errInterrupted {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("netlink: list devices: %w", err)
	}
	for i := range list {
		d := &list[i]
		q := appendAttrUint32(nil, nldevDevIndex, uint32(d.Index))
		q = appendAttr(q, nldevChardevType, []byte("uverbs\x00"))
		// No answer: the device came and went, or no ib_uverbs, or a kernel
		// before 5.3. sysfs completes what is missing.
		_ = s.request(nldevChardev, 0, q, d.parseChardev)
	}
	return list, nil
}

// netlinkNetdev asks for the network interface below a port. It is empty if
// there is none in this network namespace, or no answer.
func netlinkNetdev(device string, port uint8) (netdev string) {
	s, err := dialNetlink()
	if err != nil {
		return ""
	}
	defer s.close()
	index := -1
	_ = s.request(nldevGet, unix.NLM_F_DUMP, nil, func(attrs []byte) {
		if d, ok := parseDevice(attrs); ok && d.Name == device {
			index = d.Index
		}
	})
	if index < 0 {
		return ""
	}
	q := appendAttrUint32(nil, nldevDevIndex, uint32(index))
	q = appendAttrUint32(q, nldevPortIndex, uint32(port))
	_ = s.request(nldevPortGet, 0, q, func(b []byte) {
		if name := parseNetdev(b); name != "" {
			netdev = name
		}
	})
	return netdev
}

// parseNetdev reads the attributes of an answer to PORT_GET.
func parseNetdev(b []byte) string {
	for typ, val := range attrs(b) {
		if name := attrString(val); typ == nldevNetdevName && isFileName(name) {
			return name
		}
	}
	return ""
}

// parseDevice reads the attributes of an answer to GET.
func parseDevice(b []byte) (d Device, ok bool) {
	var protocol string
	d.Index = -1
	for typ, val := range attrs(b) {
		switch typ {
		case nldevDevIndex:
			d.Index = int(attrUint32(val))
		case nldevDevName:
			d.Name = attrString(val)
		case nldevPortIndex:
			// Ports are numbered by a byte in all commands.
			d.Ports = int(min(attrUint32(val), 255))
		case nldevFWVersion:
			d.Firmware = attrString(val)
		case nldevNodeGUID:
			d.NodeGUID = attrUint64(val)
		case nldevNodeType:
			d.NodeType = attrUint8(val)
		case nldevProtocol:
			protocol = attrString(val)
		}
	}
	if !isFileName(d.Name) || d.Index < 0 {
		return Device{}, false
	}
	d.Transport = transportOf(protocol, d.NodeType, "")
	return d, true
}

// parseChardev reads the attributes of an answer to GET_CHARDEV.
func (d *Device) parseChardev(b []byte) {
	for typ, val := range attrs(b) {
		switch typ {
		case nldevChardevName:
			if name := attrString(val); isFileName(name) {
				d.Node = name
			}
		case nldevChardevABI:
			d.ABI = uint32(attrUint64(val))
		case nldevChardevDev:
			dev := attrUint64(val)
			d.Major = uint32(dev>>8) & 0xfff
			d.Minor = uint32(dev&0xff | dev>>12&0xfff00)
		case nldevUverbsDriver:
			d.DriverID = DriverID(attrUint32(val))
		}
	}
}

// attrs walks attributes. A malformed one ends the walk.
func attrs(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			n := int(binary.NativeEndian.Uint16(b))
			// The two upper bits say nested and network byte order.
			typ := binary.NativeEndian.Uint16(b[2:]) & 0x3fff
			if n < unix.SizeofNlAttr || n > len(b) {
				return
			}
			if !yield(typ, b[unix.SizeofNlAttr:n]) {
				return
			}
			b = b[min(len(b), (n+3)&^3):]
		}
	}
}

func appendAttr(b []byte, typ uint16, val []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofNlAttr+len(val)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, val...)
	return append(b, make([]byte, -len(val)&3)...)
}

func appendAttrUint32(b []byte, typ uint16, val uint32) []byte {
	return appendAttr(b, typ, binary.NativeEndian.AppendUint32(nil, val))
}

func attrString(v []byte) string {
	s, _, _ := bytes.Cut(v, []byte{0})
	return string(s)
}

// Numbers that are too short count as zero.
func attrUint8(v []byte) uint8 {
	if len(v) < 1 {
		return 0
	}
	return v[0]
}

func attrUint32(v []byte) uint32 {
	if len(v) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(v)
}

func attrUint64(v []byte) uint64 {
	if len(v) < 8 {
		return uint64(attrUint32(v))
	}
	return binary.NativeEndian.Uint64(v)
}

// netlinkReply is the state of an answer that may take several datagrams.
type netlinkReply struct {
	seq         uint32 // of the request
	interrupted bool   // some message of the dump said so
}

// take walks the messages of one datagram and calls fn with the attributes of
// each. done is set when the answer is complete; an error is what the kernel
// said, or that it was unintelligible.
func (r *netlinkReply) take(b []byte, fn func(attrs []byte)) (done bool, err error) {
	for len(b) > 0 {
		if len(b) < unix.NLMSG_HDRLEN {
			return true, errNetlink
		}
		n := binary.NativeEndian.Uint32(b)
		if n < unix.NLMSG_HDRLEN || uint64(n) > uint64(len(b)) {
			return true, errNetlink
		}
		msg := b[:n]
		b = b[min(len(b), (int(n)+3)&^3):]
		if binary.NativeEndian.Uint32(msg[8:]) != r.seq {
			continue // of a request that was given up
		}
		if binary.NativeEndian.Uint16(msg[6:])&unix.NLM_F_DUMP_INTR != 0 {
			r.interrupted = true
		}
		body := msg[unix.NLMSG_HDRLEN:]
		switch binary.NativeEndian.Uint16(msg[4:]) {
		case unix.NLMSG_NOOP:
		case unix.NLMSG_DONE:
			err := messageErrno(body)
			if err == nil && r.interrupted {
				err = errInterrupted
			}
			return true, err
		case unix.NLMSG_ERROR: // with code 0 an acknowledgement
			if len(body) < 4 {
				return true, errNetlink
			}
			return true, messageErrno(body)
		case unix.NLMSG_OVERRUN:
			return true, unix.ENOBUFS
		default:
			fn(body)
		}
	}
	return false, nil
}

// messageErrno reads the negative errno with which an error message and the
// end of a dump begin.
func messageErrno(body []byte) error {
	if code := int32(attrUint32(body)); code < 0 {
		return unix.Errno(-code)
	}
	return nil
}
