package samehost

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// The part of linux/unix_diag.h that golang.org/x/sys does not have.
const (
	showName = 0x01 // UDIAG_SHOW_NAME
	showUID  = 0x40 // UDIAG_SHOW_UID, since Linux 5.3

	attrName = 0 // UNIX_DIAG_NAME
	attrUID  = 7 // UNIX_DIAG_UID

	stateListen = 10 // TCP_LISTEN

	requestLen = 24 // of struct unix_diag_req
	messageLen = 16 // of struct unix_diag_msg
)

var native = binary.NativeEndian

// errNoOwners is a kernel that does not say whose a Unix socket is.
var errNoOwners = errors.New("the kernel does not tell the owners of sockets")

// Names asks the kernel for the names of the listening Unix sockets of a user in this
// network namespace, as /proc/net/unix shows them. The owner is who made the socket,
// which nobody else can say of his. Linux before 5.3, or without unix_diag, does not
// tell.
func Names(uid int) ([]string, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	request := make([]byte, unix.NLMSG_HDRLEN+requestLen)
	native.PutUint32(request, uint32(len(request)))
	native.PutUint16(request[4:], unix.SOCK_DIAG_BY_FAMILY)
	native.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	body := request[unix.NLMSG_HDRLEN:]
	body[0] = unix.AF_UNIX
	native.PutUint32(body[4:], 1<<stateListen)
	native.PutUint32(body[12:], showName|showUID)
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, os.NewSyscallError("sendto", err)
	}
	var names []string
	for buf := make([]byte, 64<<10); ; {
		n, _, err := unix.Recvfrom(fd, buf, 0) // does not wait long: the kernel answers, or says why not
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("recvfrom", err)
		}
		more, err := takeSockets(buf[:n], uid, &names)
		if err != nil || !more {
			return names, err
		}
	}
}

// foreign reports whether a name that is taken is certainly not one of our user's.
func foreign(name string) bool {
	names, err := Names(os.Geteuid())
	return err == nil && !slices.Contains(names, name)
}

// takeSockets adds the names in one datagram to those of the user, and reports
// whether more datagrams follow.
func takeSockets(b []byte, uid int, names *[]string) (more bool, err error) {
	messages, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return false, fmt.Errorf("sockets' owners: %w", err)
	}
	for _, m := range messages {
		switch m.Header.Type {
		case unix.NLMSG_DONE:
			return false, nil
		case unix.NLMSG_ERROR:
			if len(m.Data) < 4 {
				return false, errNoOwners
			}
			return false, fmt.Errorf("%w: %w", errNoOwners, syscall.Errno(-int32(native.Uint32(m.Data))))
		case unix.SOCK_DIAG_BY_FAMILY:
			name, owner, err := parseSocket(m.Data)
			if err != nil {
				return false, err
			}
			if owner == uid && name != "" {
				*names = append(*names, name)
			}
		}
	}
	return true, nil
}

// parseSocket parses a struct unix_diag_msg with its attributes. A socket
// without an abstract name has none.
func parseSocket(b []byte) (name string, owner int, err error) {
	owned := false
	for b = b[min(messageLen, len(b)):]; len(b) >= unix.SizeofRtAttr; {
		length := int(native.Uint16(b))
		if length < unix.SizeofRtAttr || length > len(b) {
			return "", 0, fmt.Errorf("%w: attribute of %d bytes", errNoOwners, length)
		}
		value := b[unix.SizeofRtAttr:length]
		switch native.Uint16(b[2:]) {
		case attrName:
			if len(value) > 1 && value[0] == 0 && !slices.Contains(value[1:], 0) {
				name = "@" + string(value[1:])
			}
		case attrUID:
			if len(value) == 4 {
				owner, owned = int(native.Uint32(value)), true
			}
		}
		b = b[min((length+3)&^3, len(b)):]
	}
	if !owned {
		return "", 0, errNoOwners
	}
	return name, owner, nil
}
