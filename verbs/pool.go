package verbs

import (
	"fmt"
	"sync"
)

// Usage counts what a process has made of devices, as the kernel's rdma cgroup controller does.
// Completion channels, which are file descriptors, do not count there either.
type Usage struct {
	Handles int // hca_handle: open devices
	// hca_object: PDs, MRs, device memory, memory windows, address handles, CQs, QPs, SRQs, XRC domains. An MR of
	// PD.AllocNullMR counts too, of which the kernel does not know.
	Objects int
}

// Pool bounds what the contexts opened by it may make together, whoever uses them: those that
// it has opened are charged to it until they are closed. A program gives one to each of
// its parts, or tenants. The zero value has no limits. The limits of the kernel,
// which count for a whole cgroup, apply as well; package verbs/rdmahost reads them.
type Pool struct {
	// Parent is charged with all that this pool is, and limits it too. It is nil, or is set
	// before the pool is used.
	Parent *Pool

	mu      sync.Mutex
	all     account             // guarded by mu
	devices map[string]*account // guarded by mu, by name
}

// account is what is used of a limit.
type account struct{ limit, used Usage }

// SetLimit sets the limits of all devices together, of which 0 is none, and returns the former
// ones. What is there already stays.
func (p *Pool) SetLimit(limit Usage) (former Usage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	former, p.all.limit = p.all.limit, limit
	return former
}

// SetDeviceLimit sets the limits of the device of that name, of which 0 is none, and returns the
// former ones. They hold beside those of SetLimit; the kernel's controller has no others.
func (p *Pool) SetDeviceLimit(device string, limit Usage) (former Usage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.device(device)
	former, a.limit = a.limit, limit
	return former
}

// Usage returns what is charged now, of all devices.
func (p *Pool) Usage() Usage {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all.used
}

// DeviceUsage returns what is charged now of each device that is open, by name.
func (p *Pool) DeviceUsage() map[string]Usage {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make(map[string]Usage)
	for name, a := range p.devices {
		if a.used != (Usage{}) {
			list[name] = a.used
		}
	}
	return list
}

// Open is the function [Open], with the device and what is made of it charged to the pool and its
// parents. Where a limit is reached, it and the methods that make objects fail with an error that
// wraps ErrPoolLimit and names the limit.
func (p *Pool) Open(name string) (*Context, error) {
	if err := p.charge(name, Usage{Handles: 1}); err != nil {
		return nil, &Error{Op: "open", Device: name, Err: err, Hint: hintFor("open", err)}
	}
	c, err := Open(name)
	if err != nil {
		p.release(name, Usage{Handles: 1})
		return nil, err
	}
	c.pool = p
	return c, nil
}

// charge charges the pool and its parents, or none of them.
func (p *Pool) charge(device string, n Usage) error {
	if err := p.chargeAlone(device, n); err != nil {
		return err
	}
	if p.Parent == nil {
		return nil
	}
	if err := p.Parent.charge(device, n); err != nil {
		p.releaseAlone(device, n)
		return err
	}
	return nil
}

func (p *Pool) chargeAlone(device string, n Usage) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.all.allows(n, ""); err != nil {
		return err
	}
	a := p.device(device)
	if err := a.allows(n, " of "+device); err != nil {
		return err
	}
	p.all.used.add(n, 1)
	a.used.add(n, 1)
	return nil
}

func (p *Pool) release(device string, n Usage) {
	for ; p != nil; p = p.Parent {
		p.releaseAlone(device, n)
	}
}

func (p *Pool) releaseAlone(device string, n Usage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all.used.add(n, -1)
	a := p.device(device)
	a.used.add(n, -1)
	if *a == (account{}) {
		delete(p.devices, device)
	}
}

// device is called with mu held.
func (p *Pool) device(name string) *account {
	a := p.devices[name]
	if a == nil {
		a = new(account)
		if p.devices == nil {
			p.devices = make(map[string]*account)
		}
		p.devices[name] = a
	}
	return a
}

// allows reports which limit n more would exceed.
func (a *account) allows(n Usage, of string) error {
	for _, c := range []struct {
		name              string
		wanted, used, max int
	}{{"hca_handle", n.Handles, a.used.Handles, a.limit.Handles}, {"hca_object", n.Objects, a.used.Objects, a.limit.Objects}} {
		if c.wanted > 0 && c.max > 0 && c.wanted > c.max-c.used {
			return fmt.Errorf("%w: %s%s, %d of %d in use", ErrPoolLimit, c.name, of, c.used, c.max)
		}
	}
	return nil
}

// add adds n so many times.
func (u *Usage) add(n Usage, times int) {
	u.Handles += times * n.Handles
	u.Objects += times * n.Objects
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
		if err := c.pool.charge(c.attr.Name, Usage{Objects: 1}); err != nil {
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
		c.pool.release(c.attr.Name, Usage{Objects: 1})
	}
}
