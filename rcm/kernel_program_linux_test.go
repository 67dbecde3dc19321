package rcm

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// program is a C program that a test has started.
type program struct {
	wait func() error

	mu  sync.Mutex
	out bytes.Buffer // guarded by mu: a goroutine of exec writes it
}

// startProgram starts a C program, whose output shows if the test fails. It
// ends with the test at the latest, so that it does not hold a port for longer.
func startProgram(t testing.TB, name string, args ...string) *program {
	t.Helper()
	path, err := exec.LookPath(name)
	require.NoError(t, err, "the guest has it")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	cmd := exec.CommandContext(ctx, path, args...)
	p := new(program)
	cmd.Stdout, cmd.Stderr = p, p
	require.NoError(t, cmd.Start())
	p.wait = sync.OnceValue(func() error {
		if err := cmd.Wait(); err != nil { // ends with the program, which the context kills after patience
			return fmt.Errorf("%s %v: %w", name, args, err)
		}
		return nil
	})
	t.Cleanup(func() {
		cancel()
		if err := p.wait(); t.Failed() { // ends at once: the context has killed it
			t.Logf("%s %v ended with %v:\n%s", name, args, err, p.said())
		}
	})
	return p
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
