package rnet

import (
	"sync"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/verbs"
)

// device is an open device that the sessions and listeners of this process
// share. It is closed with its last user.
type device struct {
	ctx  *verbs.Context
	refs int // guarded by devices.mu
}

var devices struct {
	mu   sync.Mutex
	open map[string]*device
}

// acquireDevice opens the device called name, or shares it if it is open.
func acquireDevice(name string) (*device, error) {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	if d := devices.open[name]; d != nil {
		d.refs++
		return d, nil
	}
	ctx, err := verbs.Open(name)
	if err != nil {
		return nil, err
	}
	if devices.open == nil {
		devices.open = make(map[string]*device)
	}
	d := &device{ctx: ctx, refs: 1}
	devices.open[name] = d
	return d, nil
}

// openRNRs asks the device of a port, as portName has it, what it counts on all
// its ports, if it is open; see verbs.Context.RNRs.
func openRNRs(port string) (count uint64, counted, open bool) {
	device, _ := fallback.ParseDevice(port) // nothing, which is not open, if it is none
	devices.mu.Lock()
	d := devices.open[device.Name]
	devices.mu.Unlock()
	if d == nil {
		return 0, false, false
	}
	count, counted = d.ctx.RNRs() // which may be closed by now, and tells all the same
	return count, counted, true
}

func (d *device) release() {
	devices.mu.Lock()
	defer devices.mu.Unlock()
	if d.refs--; d.refs > 0 {
		return
	}
	delete(devices.open, d.ctx.Name())
	d.ctx.Close()
}
