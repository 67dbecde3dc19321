package attach

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs/samehost"
	"golang.org/x/sys/unix"
)

// Endpoint is one that was found, which may be gone already.
type Endpoint struct {
	PID int // as its process sees it
	// Ours says that the kernel named our user as the owner. If it is false,
	// the endpoint may be a stranger's with our name: Dial tells.
	Ours bool
	name string
}

// Name is that of the socket, which no other process has.
func (e Endpoint) Name() string { return e.name }

// listening is how /proc/net/unix marks a listening socket (__SO_ACCEPTCON).
const listening = "00010000"

// Find returns the endpoints of this user in this network namespace.
func Find() ([]Endpoint, error) {
	if err := samehost.CheckUser(); err != nil {
		return nil, err
	}
	uid := os.Geteuid()
	if names, err := samehost.Names(uid); err == nil {
		return findAmong(names, uid), nil
	}
	return FindByName()
}

// findAmong takes those of the names of a user's sockets that are endpoints.
func findAmong(names []string, uid int) (list []Endpoint) {
	for _, name := range names {
		if owner, pid, ok := parseName(name); ok && owner == uid {
			list = append(list, Endpoint{PID: pid, Ours: true, name: name})
		}
	}
	return list
}

// FindByName is Find for Linux before 5.3, and without its module unix_diag: it
// believes the names, for whose a socket is turns out only when it is dialed.
func FindByName() ([]Endpoint, error) {
	file, err := os.Open("/proc/self/net/unix")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return findIn(file, os.Geteuid())
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

// ErrStranger is an endpoint of another user that has a name of ours, ErrBusy
// one with a queue that is full at the moment.
var (
	ErrStranger = errors.New("attach: the endpoint belongs to another user")
	ErrBusy     = errors.New("attach: the endpoint's queue is full")
)

// Conn is a connection to an endpoint of our user.
type Conn struct {
	conn *samehost.Conn
}

// Dial connects, and makes sure that the endpoint is our user's. It does not
// wait.
func (e Endpoint) Dial() (*Conn, error) {
	conn, err := samehost.Dial(unix.SOCK_STREAM, nil, e.name)
	var stranger *samehost.DeniedError
	switch {
	case errors.As(err, &stranger):
		return nil, fmt.Errorf("%w: %w", ErrStranger, err)
	case errors.Is(err, unix.EAGAIN):
		return nil, fmt.Errorf("%w: %w", ErrBusy, err)
	case err != nil:
		return nil, err
	}
	return &Conn{conn}, nil
}

// Read returns what the process at the endpoint tells of itself, and its id as
// this process sees it, 0 if it does not. It waits until it is told, or ctx
// ends, and closes the connection.
func (c *Conn) Read(ctx context.Context) (document []byte, pid int, err error) {
	defer c.conn.Close()
	stop := context.AfterFunc(ctx, func() { c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	document, err = io.ReadAll(io.LimitReader(c.conn, maxDocument)) // ended by the endpoint, or ctx
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return document, c.conn.Peer().PID, err
}
