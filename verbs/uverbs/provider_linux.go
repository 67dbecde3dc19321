package uverbs

import (
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

func init() { verbs.Register(provider{}) }

type provider struct{}

func (provider) Name() string { return ProviderName }

// Devices lists all devices that the kernel has, also those whose driver
// cannot be used.
func (provider) Devices() ([]verbs.DeviceInfo, error) {
	entries, err := rdmahost.Devices()
	if err != nil {
		return nil, err
	}
	list := make([]verbs.DeviceInfo, len(entries))
	for i := range entries {
		list[i] = entries[i].Info()
	}
	return list, nil
}

// Serves reports whether there is a driver for the device.
func (provider) Serves(d verbs.DeviceInfo) bool { return Drives(d.Driver) }

// Explain says which limit of an administrator an error came from.
func (provider) Explain(e *verbs.Error) (verbs.Limit, string) { return rdmahost.ExplainError(e) }

func (provider) Open(name string) (verbs.ContextDriver, error) {
	entries, err := rdmahost.Devices()
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Name == name {
			d, err := openDevice(e)
			if err != nil {
				return nil, err
			}
			return d, nil
		}
	}
	return nil, verbs.ErrNoDevice
}
