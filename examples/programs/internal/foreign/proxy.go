package foreign

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/seed-b9b531af/ramjet/internal/freeport"
)

// Proxy is examples/proxy in front of a TCP server, as a program of its own.
type Proxy struct {
	// Addr is where rnet clients reach the server. It stays the same when the
	// proxy is started again.
	Addr string

	program, to string
	process     *child.Process
}

// NewProxy builds examples/proxy in dir and starts it in front of the server at
// the TCP address. It must be called in a directory of this module.
func NewProxy(ctx context.Context, dir, addr string) (*Proxy, error) {
	own, err := freeport.Address("127.0.0.1")
	if err != nil {
		return nil, err
	}
	p := &Proxy{Addr: own, program: filepath.Join(dir, "proxy"), to: "tcp:" + addr}
	args := append([]string{"build", "-o", p.program}, buildFlags...)
	build := exec.CommandContext(ctx, "go", append(args, "github.com/seed-b9b531af/ramjet/examples/proxy")...)
	if out, err := build.CombinedOutput(); err != nil { // ended by the compiler, or by ctx
		return nil, fmt.Errorf("build the proxy: %w\n%s", err, out)
	}
	return p, p.Start(ctx)
}

// Start starts the proxy again after Kill.
func (p *Proxy) Start(ctx context.Context) (err error) {
	p.process, err = child.StartProgram(ctx, p.program, "-from", "rnet:"+p.Addr, "-to", p.to)
	if err == nil {
		p.Addr = p.process.Addr
	}
	return err
}

// Kill ends the proxy by SIGKILL and waits until it is gone.
func (p *Proxy) Kill() error { return p.process.Kill() }

// Stop ends the proxy.
func (p *Proxy) Stop() error { return p.process.Stop() }
