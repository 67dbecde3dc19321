//go:build amd64 || arm64

package frame

import "golang.org/x/sys/unix"

// A Channel is a queue of events that a program reads from a descriptor, one with each
// read, and can wait for with poll and epoll. It is not safe for concurrent use.
type Channel struct {
	program int // a copy of the descriptor that the program has
	ours    int
	closed  bool
}

// NewChannel returns an empty channel.
func NewChannel() (*Channel, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &Channel{program: fds[0], ours: fds[1]}, nil
}

// FD returns the descriptor for the program: for [Request.Give].
func (c *Channel) FD() int { return c.program }

// Send queues an event. It is false if there is no room. What comes after End or Close
// is dropped, as the kernel drops it while something is left that refers to the channel
// (core/uverbs_main.c, ib_uverbs_comp_handler).
func (c *Channel) Send(event []byte) bool {
	if c.closed {
		return true
	}
	err := unix.Send(c.ours, event, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	return err == nil || err == unix.EPIPE
}

// Remove takes those events from the queue that the program has not read and that
// match, and returns how many they were.
func (c *Channel) Remove(match func(event []byte) bool) int {
	var keep [][]byte
	removed := 0
	if c.closed {
		return 0
	}
	for {
		event := make([]byte, 64)
		n, _, err := unix.Recvfrom(c.program, event, unix.MSG_DONTWAIT)
		if err != nil || n == 0 {
			break
		}
		if event = event[:n]; match(event) {
			removed++
		} else {
			keep = append(keep, event)
		}
	}
	for _, event := range keep {
		c.Send(event)
	}
	return removed
}

// End lets the program read the end of the channel, after what it has not read yet.
func (c *Channel) End() {
	if !c.closed {
		_ = unix.Shutdown(c.ours, unix.SHUT_RDWR)
	}
}

// Close closes the channel's end and its copy of the program's.
func (c *Channel) Close() {
	if c.closed {
		return
	}
	c.closed = true
	_ = unix.Close(c.program)
	_ = unix.Close(c.ours)
}
