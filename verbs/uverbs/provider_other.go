//go:build !linux

package uverbs

import "github.com/seed-b9b531af/ramjet/verbs"

func init() { verbs.Register(provider{}) }

// provider has no devices here.
type provider struct{}

func (provider) Name() string { return ProviderName }

func (provider) Devices() ([]verbs.DeviceInfo, error) { return nil, nil }

// Drives reports whether this package has a driver for devices whose driver in
// the kernel has that name. It has none here.
func Drives(string) bool { return false }

// Experimental reports whether a driver has never run on a device. There is none here.
func Experimental(string) bool { return false }

func (provider) Open(string) (verbs.ContextDriver, error) { return nil, verbs.ErrNoDevice }
