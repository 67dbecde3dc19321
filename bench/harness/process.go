package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// process is a measured process as its parent sees it. One goroutine uses it.
type process struct {
	role    role
	cmd     *exec.Cmd
	orders  io.WriteCloser
	replies chan reply // closed when the process's output ends
	at      place
}

// start runs this program again with an assignment.
func start(a assignment, cpu int, at place) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own program: %w", err)
	}
	text, err := json.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("encode assignment: %w", err)
	}
	cmd := exec.Command(self)
	// The profile also if it is empty: ours may have another one.
	cmd.Env = append(os.Environ(), childEnv+"="+string(text), "RNET_PROFILE="+a.Workload.Profile)
	cmd.Stderr = at.stderr
	orders, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("open pipe: %w", err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("open pipe: %w", err)
	}
	if err := at.begin(cmd, a, cpu); err != nil {
		return nil, fmt.Errorf("start %s: %w", a.Role, err)
	}
	p := &process{role: a.Role, cmd: cmd, orders: orders, replies: make(chan reply, 1), at: at}
	go p.listen(output)
	return p, nil
}

// listen hands on what the process says until its output ends, as it does
// with the process.
func (p *process) listen(output io.Reader) {
	defer close(p.replies)
	for decoder := json.NewDecoder(output); ; {
		var r reply
		if err := decoder.Decode(&r); err != nil {
			return
		}
		p.replies <- r // taken by await, or drained by stopAll
	}
}

// askAll gives all the same order at once, and waits for the answers, for as
// much longer than the order's own work takes as the place allows.
func askAll(ctx context.Context, all []*process, cmd command, work time.Duration) ([]reply, error) {
	text, err := json.Marshal(cmd)
	if err != nil {
		return nil, fmt.Errorf("encode order: %w", err)
	}
	text = append(text, '\n')
	for _, p := range all {
		if _, err := p.orders.Write(text); err != nil {
			return nil, fmt.Errorf("order %s from %s: %w", cmd, p.role, err)
		}
	}
	replies := make([]reply, len(all))
	for i, p := range all {
		if replies[i], err = p.await(ctx, work); err != nil {
			return nil, fmt.Errorf("%s: %w", cmd, err)
		}
	}
	return replies, nil
}

// await waits for the next thing that the process says.
func (p *process) await(ctx context.Context, work time.Duration) (reply, error) {
	timeout := time.NewTimer(work + p.at.patience)
	defer timeout.Stop()
	select { // ended by the process's answer or end, the user, or the clock
	case r, ok := <-p.replies:
		if !ok {
			return reply{}, fmt.Errorf("the %s has ended", p.role)
		}
		if r.Err != "" {
			return reply{}, errors.New(r.Err)
		}
		return r, nil
	case <-ctx.Done():
		return reply{}, context.Cause(ctx)
	case <-timeout.C:
		p.dump()
		return reply{}, fmt.Errorf("the %s gives no answer after %v", p.role, work+p.at.patience)
	}
}

// dump makes a hung process print its goroutines and end.
func (p *process) dump() {
	if p.at.verbose {
		p.cmd.Process.Signal(syscall.SIGQUIT)
		time.Sleep(time.Second) // for it to write; stopAll kills it if it does not end
	}
}

// killAfter is how long a process may take to end that has failed, or that nobody waits for.
const killAfter = 2 * time.Second

// stopAll ends the processes, kindly first, and waits until they are gone. It fails if one of
// them did not end well within the grace.
func stopAll(all []*process, grace time.Duration) error {
	for _, p := range all {
		p.orders.Close() // a process ends when its input does
		defer time.AfterFunc(grace, func() { p.cmd.Process.Kill() }).Stop()
	}
	var first error
	for _, p := range all {
		for range p.replies { // ended by the end of the process
		}
		if err := p.cmd.Wait(); err != nil && first == nil {
			first = fmt.Errorf("the %s did not end well: %w", p.role, err)
		}
	}
	return first
}
