package uverbs

import "github.com/seed-b9b531af/ramjet/verbs"

func init() { verbs.Register(provider{}) }

type provider struct{}

func (provider) Name() string { return ProviderName }

// Devices lists all devices that the kernel has, also those whose driver
// cannot be used.
func (provider) Devices() ([]verbs.DeviceInfo, error) {
	entries, err := discover()
	if err != nil {
		return nil, err
	}
	list := make([]verbs.DeviceInfo, len(entries))
	for i := range entries {
		list[i] = entries[i].info()
	}
	return list, nil
}

func (e *deviceEntry) info() verbs.DeviceInfo {
	return verbs.DeviceInfo{Name: e.name, Provider: ProviderName, Transport: e.transport, Driver: e.driver, NodeGUID: e.nodeGUID}
}

func (provider) Open(name string) (verbs.ContextDriver, error) {
	entries, err := discover()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.name == name {
			d, err := openDevice(e)
			if err != nil {
				return nil, err
			}
			return d, nil
		}
	}
	return nil, verbs.ErrNoDevice
}

// driverFor returns the driver for a device, nil if there is none.
func driverFor(id driverID) driver {
	switch id {
	case driverRXE:
		return rxe{}
	case driverSIW:
		return siw{}
	}
	return nil
}
