package cmtest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/stretchr/testify/require"
)

// Main turns the test binary into a peer process when a test started it
// as one, and otherwise runs the tests, which fail if they leave something behind.
func Main(m *testing.M) {
	if role := os.Getenv(RoleVariable); role != "" {
		os.Exit(playRole(role))
	}
	leak.Main(m)
}

// RoleVariable names the part that a child process plays, and its arguments.
const RoleVariable = "RCM_TEST_ROLE"

// Roles are what a child process may do; packages add theirs.
var Roles = make(map[string]func(args []string) error)

func playRole(role string) int {
	args := strings.Fields(role)
	go func() {
		io.Copy(io.Discard, os.Stdin) // ended by the parent's death, or its wish
		time.Sleep(Timeout)
		os.Exit(3) // for those who wait for something else
	}()
	if err := Roles[args[0]](args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, role, err)
		return 1
	}
	return 0
}

// child is another process that plays a role. It says "ready" on its standard
// output when it is, and may end when its standard input does.
type child struct {
	Cmd   *exec.Cmd
	lines *bufio.Scanner
}

// StartChild starts a process, as another user if uid is not 0, and waits
// until it is ready.
func StartChild(t testing.TB, uid uint32, role string, args ...string) *child {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), RoleVariable+"="+role+" "+strings.Join(args, " "))
	cmd.Stderr = os.Stderr
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &child{Cmd: cmd, lines: bufio.NewScanner(stdout)}
	t.Cleanup(func() {
		stdin.Close()
		c.awaitEnd(t)
	})
	c.Expect(t, "ready")
	return c
}

// awaitEnd waits for the end of the child, which is killed when its time is up. One that
// outlives that is held by the kernel, at the end of a device's object: the test tells where.
func (c *child) awaitEnd(t testing.TB) {
	defer c.killAfter(Timeout)()
	ended := make(chan struct{})
	go func() {
		c.Cmd.Wait() // ends with the child
		close(ended)
	}()
	select { // ended by the child, or the clock
	case <-ended:
	case <-time.After(Timeout + 10*time.Second):
		t.Errorf("child %d does not end\n%s", c.PID(), kernelStacks(c.PID()))
	}
}

// kernelStacks is where the threads of a process are in the kernel, which root may know.
func kernelStacks(pid int) (text string) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stack", pid))
	for _, file := range threads {
		var stack []byte
		stack, err = os.ReadFile(file)
		text += fmt.Sprintf("%s\n%s", file, stack)
	}
	return fmt.Sprint(text, err)
}

// killAfter kills the child when its time is up, which ends all waits for it,
// unless stop is called before.
func (c *child) killAfter(d time.Duration) (stop func() bool) {
	return time.AfterFunc(d, func() { c.Cmd.Process.Kill() }).Stop
}

// Expect waits for a line of the child's output; the wait ends with the
// child's death too, and that comes after patience at the latest.
func (c *child) Expect(t testing.TB, want string) {
	t.Helper()
	defer c.killAfter(Timeout)()
	require.True(t, c.lines.Scan(), "child ended before it said %q", want)
	require.Equal(t, want, c.lines.Text())
}

// UntilStdinEnds says that the child is ready, and waits for the parent to end it.
func UntilStdinEnds() {
	fmt.Println("ready")
	var b [1]byte
	os.Stdin.Read(b[:])
}

// Kill ends the child as kill(1) does.
func (c *child) Kill() error { return c.Cmd.Process.Kill() }

// PID is its number.
func (c *child) PID() int { return c.Cmd.Process.Pid }

// WaitEnd waits for the end of a child that was killed.
func (c *child) WaitEnd() { _ = c.Cmd.Wait() }
