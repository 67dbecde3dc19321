package roles

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Process is a child that plays a role.
type Process struct {
	Cmd *exec.Cmd

	stdin io.Closer
	lines *bufio.Scanner
}

// Start starts a child, which ends with the test at the latest.
func Start(t testing.TB, role string, args ...string) *Process {
	t.Helper()
	return StartAs(t, func(*exec.Cmd) {}, role, args...)
}

// StartAs is Start with a chance to change what the child gets.
func StartAs(t testing.TB, change func(*exec.Cmd), role string, args ...string) *Process {
	t.Helper()
	cmd := Command(t, role, args...)
	change(cmd)
	p, err := start(t, cmd)
	require.NoError(t, err)
	return p
}

func start(t testing.TB, cmd *exec.Cmd) (*Process, error) {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{Cmd: cmd, stdin: stdin, lines: bufio.NewScanner(stdout)}
	t.Cleanup(p.Stop)
	return p, nil
}

// Command returns what runs a role, for a test that starts it in a way of its
// own.
func Command(t testing.TB, role string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), Variable+"="+role+" "+strings.Join(args, " "))
	cmd.Stderr = os.Stderr
	return cmd
}

// Line returns the next line that the child prints. It waits for it, or the
// child's end.
func (p *Process) Line(t testing.TB) string {
	t.Helper()
	require.True(t, p.lines.Scan(), "the child ended without a word")
	return p.lines.Text()
}

// Kill ends the child by SIGKILL, and returns before it is gone.
func (p *Process) Kill() { p.Cmd.Process.Kill() }

// Stop ends the child and waits for it. It may be called again.
func (p *Process) Stop() {
	p.stdin.Close()
	p.Cmd.Wait()
}
