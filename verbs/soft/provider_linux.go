package soft

import (
	"github.com/seed-b9b531af/ramjet/verbs"
)

func init() { verbs.Register(provider{}) }

type provider struct{}

// The limits of the device. They bound what one program can do to itself
// more than what the machine could do.
const (
	maxMRSize    = 1 << 40
	maxMR        = 1 << 20
	maxQP        = 1 << 16
	maxQPWR      = 1 << 16
	maxSGE       = 16
	maxCQ        = 1 << 16
	maxCQE       = 1 << 22
	maxPD        = 1 << 16
	maxSRQ       = 1 << 16
	maxInline    = 1<<30 - 1
	maxTestBytes = 64 // inline data of the test device
	maxRdAtomic  = 128
)

func (provider) Name() string { return ProviderName }

func (provider) Devices() ([]verbs.DeviceInfo, error) {
	list := []verbs.DeviceInfo{infoOf(DeviceName)}
	if testDevice.Load() {
		list = append(list, infoOf(TestDeviceName), infoOf(TestNoImmName))
	}
	return list, nil
}

func (provider) Open(name string) (verbs.ContextDriver, error) {
	switch {
	case name == DeviceName, testDevice.Load() && (name == TestDeviceName || name == TestNoImmName):
		return openDevice(name)
	}
	return nil, verbs.ErrNoDevice
}

func infoOf(name string) verbs.DeviceInfo {
	return verbs.DeviceInfo{Name: name, Provider: ProviderName, Transport: verbs.TransportSoft}
}

func attrOf(name string) verbs.DeviceAttr {
	a := verbs.DeviceAttr{
		DeviceInfo:      infoOf(name),
		FirmwareVersion: "1",
		Caps: verbs.CapWriteWithImm | verbs.CapSendWithImm | verbs.CapSendWithInv | verbs.CapRead | verbs.CapAtomics |
			verbs.CapSRQ | verbs.CapThreadWait | verbs.CapResizeCQ | verbs.CapInlineIsTransfer,
		MaxMRSize: maxMRSize, MaxMR: maxMR, MaxPD: maxPD,
		MaxQP: maxQP, MaxQPWR: maxQPWR, MaxSGE: maxSGE, MaxInline: maxInline,
		MaxQPInitRdAtomic: maxRdAtomic, MaxQPRdAtomic: maxRdAtomic,
		MaxCQ: maxCQ, MaxCQE: maxCQE,
		MaxSRQ: maxSRQ, MaxSRQWR: maxQPWR, MaxSRQSGE: maxSGE,
		PhysPorts: 1,
	}
	switch name {
	case TestNoImmName:
		a.Caps &^= verbs.CapWriteWithImm | verbs.CapSendWithImm | verbs.CapAtomics | verbs.CapSRQ
		fallthrough
	case TestDeviceName:
		a.Caps &^= verbs.CapInlineIsTransfer | verbs.CapThreadWait
		a.MaxInline = maxTestBytes
	}
	return a
}
