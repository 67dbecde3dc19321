package kerneltest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/testhost"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/stretchr/testify/require"
)

const (
	agentPort = "18600"
	// wirePatience is after which a process on the peer's machine counts as
	// hung. The guests are slow, and so is TCP when packets are lost.
	wirePatience = 3 * time.Minute
)

func init() { roles.Add("command", runCommand) }

// serveProcesses starts a process for each connection, whose first line is its
// role: the connection is its standard input and output, and its first line
// the number of the process. It ends when it is asked for the role "end".
func serveProcesses() error {
	ln, err := net.Listen("tcp", ":"+agentPort)
	if err != nil {
		return err
	}
	over := make(chan struct{})
	go func() {
		for {
			c, err := ln.Accept() // ended by the other machine, or the end of this process
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				from := bufio.NewReader(c)
				role, err := from.ReadString('\n')
				switch role = strings.TrimSpace(role); {
				case err != nil:
				case role == "end":
					close(over)
				default:
					if err := serveProcess(role, from, c); err != nil {
						fmt.Fprintln(os.Stderr, "peer: role", role, "failed:", err)
					}
				}
			}()
		}
	}()
	<-over // ended by the other machine
	return nil
}

func serveProcess(role string, from io.Reader, to net.Conn) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roles.Variable+"="+role)
	var complaints strings.Builder
	cmd.Stdout, cmd.Stderr = to, &complaints
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	fmt.Fprintln(to, cmd.Process.Pid)
	go func() {
		io.Copy(stdin, from) // ended by the test
		stdin.Close()
		cmd.Process.Signal(syscall.SIGCONT) // it may have been stopped
	}()
	err = cmd.Wait()
	if complaints.Len() > 0 {
		fmt.Fprintln(to, complaints.String())
	}
	return err
}

// runCommand runs a program of the guest and tells its output and its error,
// quoted.
func runCommand(args []string) error {
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	fmt.Printf("%q %q\n", out, fmt.Sprint(err))
	return nil
}

// needsWire skips t unless this is the first machine of a pair, and returns
// the devices at this end of the wire.
func needsWire(t testing.TB) []device {
	t.Helper()
	if testhost.Peer() == "" {
		t.Skip(testhost.PeerVariable + ` is not set: run this in two guests, "go test -exec 'guest -pair -devices rxe0'"`)
	}
	return needsGuest(t)
}

// overWire runs f as a subtest for each device of the wire. Each has to leave
// the devices at both ends as they were.
func overWire(t *testing.T, f func(t *testing.T, k device)) {
	for _, k := range needsWire(t) {
		t.Run(k.name, func(t *testing.T) {
			leavesDevicesAlone(t)
			leavesPeersDevicesAlone(t)
			f(t, k)
		})
	}
}

// leavesPeersDevicesAlone is leavesDevicesAlone on the peer's machine. Its
// processes end with t, so it is about what their kernel frees after them.
func leavesPeersDevicesAlone(t testing.TB) {
	t.Helper()
	if testhost.IsModel() {
		return // it does not tell
	}
	before := onPeer(t, "rdma", "resource")
	t.Cleanup(func() {
		var now string
		for end := time.Now().Add(wirePatience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if now = onPeer(t, "rdma", "resource"); now == before {
				return
			}
		}
		t.Errorf("left in the peer's kernel:\n%s\nbefore\n%s", now, before)
	})
}

// wireProcess is a process on the peer's machine.
type wireProcess struct {
	c     net.Conn
	lines *bufio.Scanner
	pid   string
}

// startOnPeer starts a process that plays a role on the peer's machine. It
// ends with the test at the latest.
func startOnPeer(t testing.TB, role string, args ...string) *wireProcess {
	t.Helper()
	p := askPeer(t, role, args...)
	p.pid = p.line(t)
	return p
}

// askPeer is startOnPeer that does not wait for the process to have begun.
func askPeer(t testing.TB, role string, args ...string) *wireProcess {
	t.Helper()
	var c net.Conn
	var err error
	for end := time.Now().Add(wirePatience); ; time.Sleep(100 * time.Millisecond) {
		d := net.Dialer{Timeout: 10 * time.Second}
		c, err = d.Dial("tcp", net.JoinHostPort(testhost.Peer(), agentPort))
		if err == nil || time.Now().After(end) {
			break
		}
	}
	require.NoError(t, err)
	p := &wireProcess{c: c, lines: bufio.NewScanner(c)}
	t.Cleanup(p.stop)
	_, err = fmt.Fprintln(c, role, strings.Join(args, " "))
	require.NoError(t, err)
	return p
}

// line returns the next line that the process prints.
func (p *wireProcess) line(t testing.TB) string {
	t.Helper()
	p.c.SetReadDeadline(time.Now().Add(wirePatience))
	require.True(t, p.lines.Scan(), "the process on the peer's machine ended without a word: %v", p.lines.Err())
	return p.lines.Text()
}

// stop ends the process. It may be called again.
func (p *wireProcess) stop() { p.c.Close() }

// onPeer runs a program of the peer's guest and returns what it prints.
func onPeer(t testing.TB, args ...string) string {
	t.Helper()
	p := startOnPeer(t, "command", args...)
	defer p.stop()
	said := p.line(t)
	quoted, err := strconv.QuotedPrefix(said)
	require.NoError(t, err)
	out, err := strconv.Unquote(quoted)
	require.NoError(t, err)
	require.Equal(t, `"<nil>"`, strings.TrimSpace(said[len(quoted):]), "%v: %s", args, out)
	return out
}

// shapeWire makes both ends of the wire treat what they send as netem's
// arguments say, until the returned function is called, or the test ends.
func shapeWire(t testing.TB, netem ...string) (mend func()) {
	t.Helper()
	run(t, "modprobe", "sch_netem")
	onPeer(t, "modprobe", "sch_netem")
	begin := append([]string{"tc", "qdisc", "replace", "dev", "eth0", "root", "netem"}, netem...)
	end := []string{"tc", "qdisc", "delete", "dev", "eth0", "root"}
	onPeer(t, begin...)
	run(t, begin[0], begin[1:]...)
	mended := false
	mend = func() {
		if !mended {
			mended = true
			run(t, end[0], end[1:]...)
			onPeer(t, end...)
		}
	}
	t.Cleanup(mend)
	return mend
}
