//go:build amd64 || arm64

package ibverbs

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

func init() { verbs.Register(provider{}) }

type provider struct{}

func (provider) Name() string { return ProviderName }

// Devices lists the devices of the kernel for which the library has a driver. Where there
// are no devices the library is not opened, and need not be there.
func (provider) Devices() ([]verbs.DeviceInfo, error) {
	entries, err := rdmahost.Devices()
	if err != nil || len(entries) == 0 {
		return nil, err
	}
	l, err := loaded()
	if err != nil {
		return nil, err
	}
	known := make(map[string]bool)
	err = l.eachDevice(func(name string, _ uintptr) bool {
		known[name] = true
		return true
	})
	if err != nil {
		return nil, err
	}
	var list []verbs.DeviceInfo
	for i := range entries {
		if known[entries[i].Name] && served(&entries[i]) {
			info := entries[i].Info()
			info.Provider = ProviderName
			list = append(list, info)
		}
	}
	return list, nil
}

// served leaves siw to package uverbs, unless the library was asked for: its driver for siw neither
// flushes what is posted to a QP that has failed, nor keeps from the kernel what makes that fail.
func served(d *rdmahost.Device) bool {
	return d.DriverID != rdmahost.DriverSIW || slices.Contains(strings.Split(os.Getenv(verbs.ProvidersVar), ","), ProviderName)
}

// eachDevice calls f for the devices of the library until it returns false.
func (l *library) eachDevice(f func(name string, device uintptr) bool) error {
	n := new(int32)
	list, err := handle(l.getDeviceList, uintptr(unsafe.Pointer(n)))
	if err != nil {
		return failed("ibv_get_device_list", err)
	}
	defer number(l.freeDeviceList, list)
	for _, device := range unsafe.Slice(view[uintptr](list), *n) {
		name, err := handle(l.getDeviceName, device)
		if err == nil && !f(unix.BytePtrToString(view[byte](name)), device) {
			break
		}
	}
	return nil
}

// Explain says which limit of an administrator an error came from.
func (provider) Explain(e *verbs.Error) (verbs.Limit, string) { return rdmahost.ExplainError(e) }

func (provider) Open(name string) (verbs.ContextDriver, error) {
	entries, err := rdmahost.Devices()
	if err != nil {
		return nil, err
	}
	for i := range entries {
		if entries[i].Name == name && served(&entries[i]) {
			d, err := openDevice(entries[i])
			if err != nil {
				return nil, err
			}
			return d, nil
		}
	}
	return nil, verbs.ErrNoDevice
}

// openContext has the library open a device.
func (l *library) openContext(name string) (context uintptr, err error) {
	err = fmt.Errorf("%w: %s has no driver for it (Debian: ibverbs-providers)", verbs.ErrUnsupported, libraryName)
	listErr := l.eachDevice(func(found string, device uintptr) bool {
		if found != name {
			return true
		}
		context, err = handle(l.openDevice, device)
		switch {
		case err != nil:
			err = failed("ibv_open_device", err)
		case view[ibvContext](context).device != device:
			// It is left open: who knows what else lies elsewhere.
			context, err = 0, unknownLayout("ibv_context")
		}
		return false
	})
	if listErr != nil {
		err = listErr
	}
	return context, err
}

// unknownLayout is the error of a structure that does not hold what it was made with.
func unknownLayout(structure string) error {
	return fmt.Errorf("%w: struct %s of %s is not that of rdma-core 44", verbs.ErrUnsupported, structure, libraryName)
}
