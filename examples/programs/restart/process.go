package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
)

// process is a server, which may be another process meanwhile: what all of them have in
// common is their standard input, with which they end, and their output.
type process struct {
	addr string

	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{} // closed when the output has ended: all have
}

// start starts this program as the server.
func start(ctx context.Context, address string) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, "-tied", "-listen", address)
	cmd.Stderr = os.Stderr
	return startCommand(cmd, func(p *process) error { return child.Tie(cmd, p.ended) })
}

// startCommand has a command started that is the server.
func startCommand(cmd *exec.Cmd, start func(*process) error) (*process, error) {
	p := &process{cmd: cmd, ended: make(chan struct{})}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = start(p)
	}
	if err != nil {
		stdin.Close()
		return nil, err
	}
	lines := bufio.NewReader(stdout)
	first, err := lines.ReadString('\n') // ended by the line, or by the end of the process
	go func() {
		defer close(p.ended)
		_, _ = io.Copy(io.Discard, lines) // ended by the end of the last process
	}()
	addr, announced := strings.CutPrefix(strings.TrimSpace(first), child.Announcement)
	if !announced {
		return nil, errors.Join(fmt.Errorf("unexpected output %q", first), err, p.stop())
	}
	p.addr = addr
	return p, nil
}

// stop ends the server, and waits until all of its processes have ended.
func (p *process) stop() error {
	p.stdin.Close()
	<-p.ended // ended by the end of the last process, which follows that of its input
	return p.cmd.Wait()
}
