package kernelcm

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// program is a C program that a test has started.
type program struct {
	wait func() error
	stop func() // kills it, and waits

	mu  sync.Mutex
	out bytes.Buffer // guarded by mu: a goroutine of exec writes it
}

// startProgram starts a C program, whose output shows if the test fails. It
// ends with the test at the latest, so that it does not hold a port for longer.
func startProgram(t testing.TB, name string, args ...string) *program {
	t.Helper()
	path, err := exec.LookPath(name)
	require.NoError(t, err, "the guest has it")
	ctx, cancel := context.WithTimeout(t.Context(), cmtest.Timeout)
	cmd := exec.CommandContext(ctx, path, args...)
	p := new(program)
	master, terminal := openTerminal(t)
	cmd.Stdout, cmd.Stderr = terminal, terminal
	require.NoError(t, cmd.Start())
	terminal.Close()
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		defer master.Close()
		io.Copy(p, master) // ends with the program, which was the last to have the terminal
	}()
	p.wait = sync.OnceValue(func() error {
		err := cmd.Wait() // ends with the program, which the context kills after patience
		<-copied
		if err != nil {
			return fmt.Errorf("%s %v: %w", name, args, err)
		}
		return nil
	})
	p.stop = func() {
		cancel()
		_ = p.wait() // ends at once: the context has killed it
	}
	t.Cleanup(func() {
		cancel()
		if err := p.wait(); t.Failed() { // ends at once: the context has killed it
			t.Logf("%s %v ended with %v:\n%s", name, args, err, p.said())
		}
	})
	return p
}

// openTerminal makes a terminal for a program: what it says shows line by line, which
// it would keep to its end if it wrote to a pipe.
func openTerminal(t testing.TB) (master, terminal *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	raw, err := master.SyscallConn()
	require.NoError(t, err)
	var number int
	var ioctlErr error
	require.NoError(t, raw.Control(func(fd uintptr) {
		if ioctlErr = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); ioctlErr == nil {
			number, ioctlErr = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}))
	require.NoError(t, ioctlErr)
	terminal, err = os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	return master, terminal
}

// Write takes output of the program.
func (p *program) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

// said is the output so far.
func (p *program) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}
