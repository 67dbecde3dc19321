package verbs

import (
	"fmt"
	"sync"
)

// Usage counts what a process has made of devices, as the kernel's rdma cgroup controller does.
// Completion channels, which are file descriptors, do not count there either.
type Usage struct {
	Handles int // hca_handle: open devices
	Objects int // hca_object: PDs, MRs, memory windows, address handles, CQs, QPs, SRQs
}

// Pool bounds what the contexts opened by it may make together, whoever uses them: those that
// it has opened are charged to it until they are closed. A program gives one to each of
// its parts, or tenants, or devices. The zero value has no limits. The limits of the kernel,
// which count for a whole cgroup, apply as well; package verbs/rdmahost reads them.
type Pool struct {
	mu    sync.Mutex
	limit Usage // guarded by mu
	used  Usage // guarded by mu
}

// SetLimit sets the limits, of which 0 is none, and returns the former ones. What is there already stays.
func (p *Pool) SetLimit(limit Usage) (former Usage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	former, p.limit = p.limit, limit
	return former
}

// Usage returns what is charged now.
func (p *Pool) Usage() Usage {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// Open is the function [Open], with the device and what is made of it charged to the pool.
// Where a limit is reached, it and the methods that make objects fail with an error that wraps
// ErrPoolLimit and names the limit.
func (p *Pool) Open(name string) (*Context, error) {
	if err := p.charge(Usage{Handles: 1}); err != nil {
		return nil, &Error{Op: "open", Device: name, Err: err, Hint: hintFor("open", err)}
	}
	c, err := Open(name)
	if err != nil {
		p.release(Usage{Handles: 1})
		return nil, err
	}
	c.pool = p
	return c, nil
}

func (p *Pool) charge(n Usage) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range []struct {
		name              string
		wanted, used, max int
	}{{"hca_handle", n.Handles, p.used.Handles, p.limit.Handles}, {"hca_object", n.Objects, p.used.Objects, p.limit.Objects}} {
		if c.wanted > 0 && c.max > 0 && c.wanted > c.max-c.used {
			return fmt.Errorf("%w: %s, %d of %d in use", ErrPoolLimit, c.name, c.used, c.max)
		}
	}
	p.used.Handles += n.Handles
	p.used.Objects += n.Objects
	return nil
}

func (p *Pool) release(n Usage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used.Handles -= n.Handles
	p.used.Objects -= n.Objects
}

// Objects returns how many objects of the context are open.
func (c *Context) Objects() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.objects
}

// charged makes an object that counts.
func charged[T any](c *Context, make func() (T, error)) (made T, err error) {
	if err := c.charge(); err != nil {
		return made, err
	}
	if made, err = make(); err != nil {
		c.discharge()
	}
	return made, err
}

// charge counts an object more. On a context that is closed nothing counts, or is made.
func (c *Context) charge() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mrs == nil {
		return nil
	}
	if c.pool != nil {
		if err := c.pool.charge(Usage{Objects: 1}); err != nil {
			return err
		}
	}
	c.objects++
	return nil
}

// discharge counts one less. Those that are open when the context is closed have ended with it.
func (c *Context) discharge() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mrs == nil {
		return
	}
	c.objects--
	if c.pool != nil {
		c.pool.release(Usage{Objects: 1})
	}
}
