package uverbs

import (
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/rxe"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/siw"
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

// drivers are the drivers by what the kernel calls theirs.
var drivers = map[rdmahost.DriverID]driver.Driver{
	rdmahost.DriverRXE: rxe.Driver{},
	rdmahost.DriverSIW: siw.Driver{},
}

// Drives reports whether this package has a driver for devices whose driver in
// the kernel has that name, "rxe" for instance (DeviceInfo.Driver).
func Drives(name string) bool {
	for id := range drivers {
		if id.String() == name {
			return true
		}
	}
	return false
}
