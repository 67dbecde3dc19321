package rnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/internal/passrights"
	"github.com/seed-b9b531af/ramjet/rnet/internal/attach"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

// What another user of the host can do to a process with a listener, by the Unix
// sockets that everybody can connect to.

func init() {
	roles.Add("strange", strange)
	roles.Add("honest", honest)
}

func TestStrangersHoldUpNobody(t *testing.T) {
	for _, c := range []struct {
		name  string
		allow Allow // which lets somebody else in
	}{
		{"our user", Allow{}},
		{"rules", Allow{Users: []uint32{4242}, Groups: []uint32{4242}, Cgroups: []uint64{1 << 62}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Run("as the kernel is", func(t *testing.T) { strangersHoldUpNobody(t, c.allow) })
			t.Run("without SO_PASSRIGHTS", func(t *testing.T) {
				passrights.Missing.Store(true)
				defer passrights.Missing.Store(false)
				strangersHoldUpNobody(t, c.allow)
			})
		})
	}
}

func strangersHoldUpNobody(t *testing.T, allow Allow) {
	leak.Check(t)
	ln, err := (&ListenConfig{Allow: allow}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go serveEchoes(ln)
	// Started before there are strangers: their sockets must not be inherited by a
	// child, whose exec would close them.
	honest := roles.Start(t, "honest", ln.Addr().String())
	require.Equal(t, "served", honest.Line(t)) // the device is open now
	sockets := ownListeners(t)
	require.Len(t, sockets, 3, "bootstrap, pair and statistics: %v", sockets)
	threads := countThreads(t)

	asStranger := func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	}
	stranger := roles.StartIfAllowed(t, asStranger, "strange", sockets...)
	require.Equal(t, "begun", stranger.Line(t))
	for range 20 {
		require.Equal(t, "served", honest.Line(t), "meanwhile")
	}
	done := stranger.Line(t)
	require.Regexp(t, "^[0-9]+ kinds, ", done)
	afterwards, err := (&Dialer{Transport: Soft, Dedicated: true}).Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	require.NoError(t, afterwards.Close())
	require.Contains(t, string(ownStatistics(t)), `"pid"`)
	require.Eventually(t, func() bool { return countThreads(t) <= threads+24 }, time.Minute, time.Millisecond, "%d threads before", threads)

	closing := make(chan error, 1)
	go func() { closing <- ln.Close() }()
	select { // ended by Close
	case err := <-closing:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("Close is held up")
	}
	t.Logf("%s; threads %d, %d before; descriptors and goroutines as before", done, countThreads(t), threads)
}

// honest dials by the software HCA again and again, and has each connection echo. It
// keeps the last one, and with it the other side's device and its pair socket.
func honest(args []string) error {
	var kept net.Conn
	for { // ended by the end of the test
		c, err := (&Dialer{Transport: Soft, Dedicated: true}).Dial("tcp", args[0])
		if err != nil {
			return err
		}
		if _, err := io.WriteString(c, "echo"); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
			return err
		}
		if kept != nil {
			kept.Close()
		}
		kept = c
		fmt.Println("served")
	}
}

// ownListeners returns the abstract names of the Unix sockets on which this process
// listens, each behind the number of its type, as /proc/net/unix has them.
func ownListeners(t *testing.T) (sockets []string) {
	t.Helper()
	own := make(map[string]bool) // by inode
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	inode := regexp.MustCompile(`^socket:\[([0-9]+)\]$`)
	for _, e := range list {
		target, _ := os.Readlink("/proc/self/fd/" + e.Name())
		if m := inode.FindStringSubmatch(target); m != nil {
			own[m[1]] = true
		}
	}
	table, err := os.ReadFile("/proc/self/net/unix")
	require.NoError(t, err)
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line) // Num RefCount Protocol Flags Type St Inode Path
		if len(f) == 8 && f[3] == "00010000" && own[f[6]] {
			sockets = append(sockets, f[4]+f[7])
		}
	}
	return sockets
}

func countThreads(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	return len(list)
}

// ownStatistics reads what this process tells of itself, as rnetstat does.
func ownStatistics(t *testing.T) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	list, err := attach.Find()
	require.NoError(t, err)
	for _, e := range list {
		if e.PID != os.Getpid() {
			continue
		}
		conn, err := e.Dial()
		for errors.Is(err, attach.ErrBusy) && ctx.Err() == nil {
			time.Sleep(attach.Rest)
			conn, err = e.Dial()
		}
		require.NoError(t, err)
		document, _, err := conn.Read(ctx)
		require.NoError(t, err)
		return document
	}
	t.Fatal("no statistics of this process")
	return nil
}

// strangeness is what a stranger does with a connection: what it sends, with how many
// descriptors, and whether it keeps the connection.
var strangeness = map[string]struct {
	packet      string
	descriptors int
	keep        bool
}{
	"a lingering socket":            {"x", 1, false},
	"one, and stays":                {"x", 1, true},
	"253 of them":                   {"x", 253, false},
	"one without data":              {"", 1, false},
	"a request's beginning with it": {"RJCM\x01\x01\x00\x08", 1, true},
	"noise":                         {"GET / HTTP/1.1\r\n\r\n", 0, false},
	"silence":                       {"", 0, true},
}

// strange does all that to each of some sockets, again and again, and says what it
// has done.
func strange(sockets []string) error {
	const rounds = 15
	made, sent, keptOff, full := 0, 0, 0, 0
	for round := range rounds {
		for _, s := range sockets {
			for _, kind := range strangeness {
				typ, _ := strconv.Atoi(s[:4])
				fd, err := unix.Socket(unix.AF_UNIX, typ|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				if err := unix.Connect(fd, &unix.SockaddrUnix{Name: s[4:]}); err != nil {
					full++ // or closed by now
					unix.Close(fd)
					continue
				}
				made++
				switch err := sendStrange(fd, kind.packet, kind.descriptors); {
				case err == nil:
					sent++
				case errors.Is(err, unix.EPERM):
					keptOff++
				}
				if !kind.keep {
					unix.Close(fd)
				}
			}
		}
		if round == 0 {
			fmt.Println("begun")
		}
	}
	fmt.Printf("%d kinds, %d connections to %d sockets: %d said all, %d had their descriptors kept off, %d found a full queue\n",
		len(strangeness), made, len(sockets), sent, keptOff, full)
	select {} // ended by the end of the test
}

func sendStrange(fd int, packet string, descriptors int) error {
	if descriptors == 0 {
		_, err := unix.SendmsgN(fd, []byte(packet), nil, nil, unix.MSG_NOSIGNAL)
		return err
	}
	tcp, err := newLingering()
	if err != nil {
		return err
	}
	many := make([]int, descriptors)
	for i := range many {
		many[i] = tcp
	}
	_, err = unix.SendmsgN(fd, []byte(packet), unix.UnixRights(many...), nil, unix.MSG_NOSIGNAL)
	if err != nil { // it must not linger here
		unix.SetsockoptLinger(tcp, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
	}
	go unix.Close(tcp) // waits in our thread if the other side has thrown the message away by now
	return err
}

// newLingering makes a TCP socket whose last close waits for an hour.
func newLingering() (int, error) {
	mute, err := net.Listen("tcp4", "127.0.0.1:0") // it accepts nobody, and is left open
	if err != nil {
		return -1, err
	}
	raw, err := mute.(*net.TCPListener).SyscallConn()
	if err != nil {
		return -1, err
	}
	raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) })
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	port := mute.Addr().(*net.TCPAddr).Port
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}),
		unix.Connect(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: port}),
		unix.SetNonblock(fd, true))
	for piece := make([]byte, 4096); err == nil; {
		_, err = unix.Write(fd, piece)
	}
	if !errors.Is(err, unix.EAGAIN) {
		return -1, err
	}
	return fd, nil
}
