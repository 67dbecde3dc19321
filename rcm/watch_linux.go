package rcm

import (
	"fmt"
	"net/netip"
	"sync"
)

// WatchDevice watches a device of the kernel. It needs an address of the host
// that belongs to the device; the error wraps ErrNoRoute if there is none.
func WatchDevice(name string) (*DeviceWatch, error) {
	id, err := boundTo(name)
	if err != nil {
		return nil, fmt.Errorf("rcm: watch device %s: %w", name, err)
	}
	w := &DeviceWatch{gone: make(chan struct{}), close: id.destroy}
	var once sync.Once
	id.handle(func(ev cmEvent) {
		if ev.kind == eventDeviceRemoval {
			once.Do(func() {
				close(w.gone)
				go id.destroy()
			})
		}
	})
	return w, nil
}

// boundTo makes an id that belongs to a device, by binding it to an address of
// it.
func boundTo(name string) (*cmID, error) {
	if err := (&kernelFabric{KernelConfig{Device: name}}).anyDevice(); err != nil {
		return nil, err
	}
	addrs, err := interfaceAddrs()
	if err != nil {
		return nil, err
	}
	for _, at := range addrs {
		id, err := newCMID()
		if err != nil {
			return nil, err
		}
		if d, err := id.bindDevice(at); err == nil && d.name == name {
			return id, nil
		}
		id.destroy()
	}
	return nil, fmt.Errorf("%w: no address of this host belongs to it", ErrNoRoute)
}

// bindDevice binds id to any port of an address and returns the device that it
// is on then.
func (id *cmID) bindDevice(at netip.Addr) (kernelDevice, error) {
	if err := id.bind(netip.AddrPortFrom(at, 0)); err != nil {
		return kernelDevice{}, err
	}
	a, err := id.query()
	if err != nil {
		return kernelDevice{}, err
	}
	return deviceOf(a)
}
