package foreign

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
)

const (
	startTime = 30 * time.Second // longest start
	stopTime  = 10 * time.Second // longest orderly end
)

// Server is a process, with its children, that is started again the same way
// when it was killed.
type Server struct {
	// Command makes the command line.
	Command func() *exec.Cmd
	// Ready fails as long as the server does not answer.
	Ready func(ctx context.Context) error

	cmd  *exec.Cmd
	gone chan struct{} // closed when the process has ended
	said output
}

// output keeps what the process prints, for when it fails.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Start starts the server and returns when it answers.
func (s *Server) Start(ctx context.Context) error {
	s.cmd = s.Command()
	s.cmd.Stdout, s.cmd.Stderr = &s.said, &s.said
	s.cmd.WaitDelay = stopTime
	ownGroup(s.cmd)
	cmd, gone := s.cmd, make(chan struct{})
	if err := child.Tie(cmd, gone); err != nil {
		return err
	}
	s.gone = gone
	go func() {
		defer close(gone)
		_ = cmd.Wait() // ended by the process
	}()
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		err := s.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-gone: // ended by the process
			return fmt.Errorf("%s ended: %v\n%s", cmd.Path, cmd.ProcessState, &s.said)
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s does not answer: %w\n%s", cmd.Path, err, &s.said), s.Kill())
		}
	}
}

// Kill ends the server and its children by SIGKILL and waits until it is gone.
func (s *Server) Kill() error {
	err := killGroup(s.cmd.Process)
	<-s.gone // ended by the process
	return err
}

// Stop asks the server to end and waits until it has.
func (s *Server) Stop() error {
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		return errors.Join(err, s.Kill()) // on Windows
	}
	select {
	case <-s.gone: // ended by the process
		return nil
	case <-time.After(stopTime):
		return errors.Join(fmt.Errorf("%s did not end\n%s", s.cmd.Path, &s.said), s.Kill())
	}
}
