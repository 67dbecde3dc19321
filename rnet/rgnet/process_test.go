package rgnet

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// roleVariable names the part that a child process plays, and its arguments.
const roleVariable = "RGNET_TEST_ROLE"

// roles are what a child process can do. It says what it has to say on its
// standard output, a line each, and ends at the latest when its standard input
// does.
var roles = map[string]func(args []string) error{}

func playRole(role string) int {
	args := strings.Fields(role)
	go func() {
		io.Copy(io.Discard, os.Stdin) // ended by the parent's death, or its wish
		os.Exit(0)
	}()
	play, ok := roles[args[0]]
	if !ok {
		fmt.Fprintln(os.Stderr, "no such role:", role)
		return 2
	}
	if err := play(args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "role", role, "failed:", err)
		return 1
	}
	return 0
}

// process is a child that plays a role.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	lines *bufio.Scanner
}

// startProcess starts a child, which ends with the test at the latest.
func startProcess(t testing.TB, role string, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleVariable+"="+role+" "+strings.Join(args, " "))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p := &process{cmd: cmd, stdin: stdin, lines: bufio.NewScanner(stdout)}
	t.Cleanup(p.stop)
	return p
}

// line returns the next line that the child prints. It waits for it, or the
// child's end.
func (p *process) line(t testing.TB) string {
	t.Helper()
	require.True(t, p.lines.Scan(), "the child ended without a word")
	return p.lines.Text()
}

// kill ends the child by SIGKILL, and returns before it is gone.
func (p *process) kill() { p.cmd.Process.Kill() }

// stop ends the child and waits for it. It may be called again.
func (p *process) stop() {
	p.stdin.Close()
	p.cmd.Wait()
}
