// Package child starts the running program a second time, or another one of
// the examples, as the server of a demonstration: the examples talk between two
// processes even if they are started with one command.
package child

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// Announcement is what a server prints in front of its address, as a line of
// its own and its first, when it listens.
const Announcement = "listening on "

// grace is how long a process that was asked to end may take before it is
// killed.
const grace = 5 * time.Second

// Process is a server.
type Process struct {
	Addr string // where it listens

	cmd  *exec.Cmd
	stop context.CancelFunc
	rest chan struct{} // closed when the output has ended
}

// Start runs this program with args and returns when it has announced its
// address. What it prints after that goes to our standard output. It is asked
// to end when ctx ends; Stop must be called in any case. On Linux it ends also
// when this program is killed.
func Start(ctx context.Context, args ...string) (*Process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return StartProgram(ctx, program, args...)
}

// StartProgram is Start with another program, which announces its address in
// the same way.
func StartProgram(ctx context.Context, program string, args ...string) (*Process, error) {
	ctx, stop := context.WithCancel(ctx)
	p := &Process{cmd: exec.CommandContext(ctx, program, args...), stop: stop, rest: make(chan struct{})}
	p.cmd.Stderr = os.Stderr
	p.cmd.Cancel = p.interrupt
	p.cmd.WaitDelay = grace
	stdout, err := p.cmd.StdoutPipe()
	if err == nil {
		err = Tie(p.cmd, p.rest)
	}
	if err != nil {
		stop()
		return nil, err
	}
	lines := bufio.NewReader(stdout)
	first, err := lines.ReadString('\n') // ended by the line, or by the end of the process
	addr, announced := strings.CutPrefix(strings.TrimSpace(first), Announcement)
	if err == nil && !announced {
		err = fmt.Errorf("unexpected output %q", first)
	}
	if err != nil {
		close(p.rest)
		return nil, errors.Join(fmt.Errorf("start %s: %w", args, err), p.Stop())
	}
	p.Addr = addr
	go func() {
		defer close(p.rest)
		_, _ = io.Copy(os.Stdout, lines) // ended by the end of the process
	}()
	return p, nil
}

// interrupt asks the process to end. Windows has no such request.
func (p *Process) interrupt() error {
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		return p.cmd.Process.Kill()
	}
	return nil
}

// Kill ends the process as a crash does, by SIGKILL, and waits until it is
// gone. Stop must not be called after it.
func (p *Process) Kill() error {
	err := p.cmd.Process.Kill()
	<-p.rest         // ended by the end of the process
	_ = p.cmd.Wait() // that it was killed
	p.stop()
	return err
}

// Restart starts this program again after Kill, as the server at the address that it had.
func (p *Process) Restart(ctx context.Context) error {
	again, err := Start(ctx, "-listen", p.Addr)
	if err == nil {
		*p = *again
	}
	return err
}

// Stop ends the process and waits until it has ended. The error says that it
// did not end as it should.
func (p *Process) Stop() error {
	p.stop()
	<-p.rest // ended by the end of the process, which has a time limit
	err := p.cmd.Wait()
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil // it ended well when it was asked to
	}
	if runtime.GOOS == "windows" {
		return nil // it was killed
	}
	return err
}
