package rcm

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// roleVariable names the part that a child process plays, and its arguments.
const roleVariable = "RCM_TEST_ROLE"

var roles = map[string]func(args []string) error{
	"squat": squat,
	"hoard": hoard,
	"knock": knock,
	"serve": serve,
	"dial":  connectAndWait,

	"listenMute":  listenMute,
	"dialMute":    dialMute,
	"dialAndWait": dialAndWait,

	"resolve":        resolve,
	"dropPrivileges": dropPrivileges,
}

func playRole(role string) int {
	args := strings.Fields(role)
	go func() {
		io.Copy(io.Discard, os.Stdin) // ended by the parent's death, or its wish
		time.Sleep(patience)
		os.Exit(3) // for those who wait for something else
	}()
	if err := roles[args[0]](args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, role, err)
		return 1
	}
	return 0
}

// child is another process that plays a role. It says "ready" on its standard
// output when it is, and may end when its standard input does.
type child struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

// startChild starts a process, as another user if uid is not 0, and waits
// until it is ready.
func startChild(t testing.TB, uid uint32, role string, args ...string) *child {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"="+role+" "+strings.Join(args, " "))
	cmd.Stderr = os.Stderr
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &child{cmd: cmd, lines: bufio.NewScanner(stdout)}
	t.Cleanup(func() {
		stdin.Close()
		defer c.killAfter(patience)()
		cmd.Wait() // ends with the child
	})
	c.expect(t, "ready")
	return c
}

// killAfter kills the child when its time is up, which ends all waits for it,
// unless stop is called before.
func (c *child) killAfter(d time.Duration) (stop func() bool) {
	return time.AfterFunc(d, func() { c.cmd.Process.Kill() }).Stop
}

// expect waits for a line of the child's output; the wait ends with the
// child's death too, and that comes after patience at the latest.
func (c *child) expect(t testing.TB, want string) {
	t.Helper()
	defer c.killAfter(patience)()
	require.True(t, c.lines.Scan(), "child ended before it said %q", want)
	require.Equal(t, want, c.lines.Text())
}

func untilStdinEnds() {
	fmt.Println("ready")
	var b [1]byte
	os.Stdin.Read(b[:])
}

// squat listens on an address over a device, for everybody, and accepts
// nobody.
func squat(args []string) error {
	everybody := func(Peer) bool { return true }
	f := SoftWith(SoftConfig{Device: args[0], PeerPolicy: everybody})
	l, err := f.Listen(netip.MustParseAddrPort(args[1]), ListenConfig{})
	if err != nil {
		return err
	}
	untilStdinEnds()
	return l.Close()
}

// hoard has the name of an address, and a queue that is full.
func hoard(args []string) error {
	name := &unix.SockaddrUnix{Name: softName(netip.MustParseAddrPort(args[0]))}
	fd, err := openSocket()
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Bind(fd, name), unix.Listen(fd, 0)); err != nil {
		return err
	}
	for err == nil { // ends with the queue full
		if fd, err = openSocket(); err == nil {
			err = unix.Connect(fd, name)
		}
	}
	if err != unix.EAGAIN {
		return err
	}
	untilStdinEnds()
	return nil
}

// knock dials an address, trusting whoever listens there, and says what came
// of it.
func knock(args []string) error {
	addr := netip.MustParseAddrPort(args[0])
	sock, err := dialSoft([]string{softName(addr)}, func(Peer) bool { return true })
	if err != nil {
		return err
	}
	defer sock.Close()
	fmt.Println("ready")
	_, err = sock.expect(kindReply)
	if errors.Is(err, ErrPeerDenied) {
		fmt.Println("rejected")
		return nil
	}
	return err
}
