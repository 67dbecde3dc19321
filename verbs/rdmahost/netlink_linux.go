package rdmahost

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// netlinkSocket is a socket to the kernel's RDMA netlink. One goroutine at a
// time uses it.
type netlinkSocket struct {
	fd  int
	seq uint32
	buf []byte
}

// dialNetlink fails with EPROTONOSUPPORT if the kernel has no ib_core and
// could not load it.
func dialNetlink() (*netlinkSocket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, netlinkRDMA)
	if err != nil {
		return nil, fmt.Errorf("netlink: open RDMA socket: %w", err)
	}
	s := &netlinkSocket{fd: fd, buf: make([]byte, netlinkBuffer)}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: netlinkTimeout}); err != nil {
		s.close()
		return nil, fmt.Errorf("netlink: set timeout: %w", err)
	}
	return s, nil
}

func (s *netlinkSocket) close() { unix.Close(s.fd) }

// request sends one request and hands the attributes of each message of the
// answer to fn.
func (s *netlinkSocket) request(typ, flags uint16, attrs []byte, fn func(attrs []byte)) error {
	s.seq++
	msg := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(attrs)))
	msg = binary.NativeEndian.AppendUint16(msg, typ)
	msg = binary.NativeEndian.AppendUint16(msg, flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	msg = binary.NativeEndian.AppendUint32(msg, s.seq)
	msg = binary.NativeEndian.AppendUint32(msg, 0) // the kernel knows our port
	msg = append(msg, attrs...)
	if err := s.send(msg); err != nil {
		return err
	}
	reply := netlinkReply{seq: s.seq}
	for {
		b, err := s.recv()
		if err != nil {
			return err
		}
		if done, err := reply.take(b, fn); done {
			return err
		}
	}
}

func (s *netlinkSocket) send(msg []byte) error {
	for {
		err := unix.Sendto(s.fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if err != unix.EINTR {
			return err
		}
	}
}

// recv waits for a datagram of the kernel. The kernel answers while the
// request is sent and while a dump is read, so this returns at once; if it
// ever does not, the receive timeout ends the wait with EAGAIN.
func (s *netlinkSocket) recv() ([]byte, error) {
	for {
		n, _, flags, from, err := unix.Recvmsg(s.fd, s.buf, nil, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if addr, ok := from.(*unix.SockaddrNetlink); !ok || addr.Pid != 0 {
			continue // another process may send to our port; only the kernel counts
		}
		if flags&unix.MSG_TRUNC != 0 {
			return nil, unix.EMSGSIZE
		}
		return s.buf[:n], nil
	}
}
