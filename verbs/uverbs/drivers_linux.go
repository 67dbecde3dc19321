package uverbs

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/mlx5"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/rxe"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/siw"
)

// drivers are all drivers. A device has that of the name that its driver in the
// kernel has (rdmahost.Device.Driver).
var drivers = []knownDriver{
	{name: "rxe", driver: rxe.Driver{}, minABI: 2, maxABI: 2},                       // RXE_UVERBS_ABI_VERSION
	{name: "siw", driver: siw.Driver{}, minABI: 1, maxABI: 1},                       // SIW_ABI_VERSION
	{name: "mlx5", driver: mlx5.Driver{}, experimental: true, minABI: 1, maxABI: 1}, // MLX5_IB_UVERBS_ABI_VERSION
}

// experimentalVar is the environment variable with the names of the experimental drivers
// that are to be used, with commas between them; mlx5-blueflame is mlx5 with
// [mlx5.Driver.BlueFlame].
const experimentalVar = "RAMJET_EXPERIMENTAL"

// variants are drivers that take the place of one of the same name, if experimentalVar names them.
var variants = map[string]knownDriver{
	"mlx5-blueflame": {name: "mlx5", driver: mlx5.Driver{BlueFlame: true}, experimental: true, minABI: 1, maxABI: 1},
}

type knownDriver struct {
	name   string
	driver driver.Driver
	// experimental: it has never run on such a device, but on a model of it. It
	// is off unless experimentalVar names it.
	experimental bool
	// The versions of the driver's part of commands that it speaks (uverbs_abi_ver of the
	// kernel's driver, rdmahost.Device.ABI).
	minABI, maxABI uint32
}

func (k knownDriver) isOn() bool {
	return !k.experimental || slices.ContainsFunc(experimental(), func(name string) bool { return name == k.name || variants[name].name == k.name })
}

// speaks is nil if the driver speaks the version that the device's driver in the kernel speaks, or
// nobody knows which that is.
func (k knownDriver) speaks(entry rdmahost.Device) error {
	if entry.ABI == 0 || entry.ABI >= k.minABI && entry.ABI <= k.maxABI {
		return nil
	}
	return fmt.Errorf("%w: the driver %q of device %s speaks version %d of its ABI, and ramjet %d to %d",
		verbs.ErrUnsupported, entry.Driver, entry.Name, entry.ABI, k.minABI, k.maxABI)
}

func experimental() []string { return strings.Split(os.Getenv(experimentalVar), ",") }

// driverOf returns the driver for a device.
func driverOf(entry rdmahost.Device) (driver.Driver, error) {
	var names []string
	for _, name := range experimental() {
		if k, ok := variants[name]; ok && k.name == entry.Driver {
			return k.driver, k.speaks(entry)
		}
	}
	for _, k := range drivers {
		switch {
		case k.name == entry.Driver && k.isOn():
			return k.driver, k.speaks(entry)
		case k.experimental:
			names = append(names, fmt.Sprintf("%s with %s=%s", k.name, experimentalVar, k.name))
		default:
			names = append(names, k.name)
		}
	}
	return nil, fmt.Errorf("%w: the driver %q of device %s is not one that ramjet can use (%s)",
		verbs.ErrUnsupported, entry.Driver, entry.Name, strings.Join(names, ", "))
}

// Drives reports whether this package has a driver for devices whose driver in
// the kernel has that name, "rxe" for instance (DeviceInfo.Driver).
func Drives(name string) bool {
	return slices.ContainsFunc(drivers, func(k knownDriver) bool { return k.name == name && k.isOn() })
}

// Experimental reports whether the driver of this package for devices whose driver in the kernel
// has that name has never run on such a device, but on a model of it.
func Experimental(name string) bool {
	return slices.ContainsFunc(drivers, func(k knownDriver) bool { return k.name == name && k.experimental })
}
