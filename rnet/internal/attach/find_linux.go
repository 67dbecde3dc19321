package attach

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Endpoint is one that was found, which may be gone already, or be a
// stranger's with our name: Read tells.
type Endpoint struct {
	PID  int // as its process sees it
	name string
}

// listening is how /proc/net/unix marks a listening socket (__SO_ACCEPTCON).
const listening = "00010000"

// Find returns the endpoints of this user in this network namespace.
func Find() ([]Endpoint, error) {
	uid := os.Geteuid()
	if !knownUser(uid) {
		return nil, errUsers
	}
	file, err := os.Open("/proc/self/net/unix")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return findIn(file, uid)
}

// findIn looks through the lines of /proc/net/unix: Num RefCount Protocol
// Flags Type St Inode Path.
func findIn(table io.Reader, uid int) (list []Endpoint, err error) {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) != 8 || fields[3] != listening {
			continue
		}
		if owner, pid, ok := parseName(fields[7]); ok && owner == uid {
			list = append(list, Endpoint{PID: pid, name: fields[7]})
		}
	}
	return list, lines.Err()
}

// maxDocument bounds what a reader takes.
const maxDocument = 64 << 20

// ErrStranger is an endpoint of another user that has a name of ours.
var ErrStranger = errors.New("attach: the endpoint belongs to another user")

// Read returns what the process at the endpoint tells of itself, and its id as
// this process sees it, 0 if it does not. It waits until it is told, or ctx
// ends.
func (e Endpoint) Read(ctx context.Context) (document []byte, pid int, err error) {
	conn, err := e.dial(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer conn.Close()
	peer, err := credentials(conn)
	if err != nil {
		return nil, 0, err
	}
	if int(peer.Uid) != os.Geteuid() {
		return nil, 0, fmt.Errorf("%w: user %d, process %d", ErrStranger, peer.Uid, peer.Pid)
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	document, err = io.ReadAll(io.LimitReader(conn, maxDocument)) // ended by the endpoint, or ctx
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return document, int(peer.Pid), err
}

// dial connects. A queue that is full is tried again until ctx ends.
func (e Endpoint) dial(ctx context.Context) (*net.UnixConn, error) {
	var d net.Dialer
	for {
		conn, err := d.DialContext(ctx, "unix", e.name)
		if err == nil {
			return conn.(*net.UnixConn), nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			return nil, err
		}
		select { // ended by the clock or ctx
		case <-time.After(rest):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: the queue stays full: %w", ctx.Err(), err)
		}
	}
}
