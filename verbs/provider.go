package verbs

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Provider serves the devices of one kind: the software HCA, or the
// kernel's. The interfaces of this file are the contract between it and this
// package; programs use [Context] and the types made from it instead, which
// check arguments, count pinned memory and trace before they call a provider.
//
// Everything here may be called from any goroutine at any time, Close
// included. A Destroy that finds its object in use returns ErrBusy; after any error but ErrClosed
// the object is as it was. Every method
// with an error returns ErrClosed once the object, or its context, is closed, and
// so does a second Destroy.
type Provider interface {
	// Name is short and constant: "soft", "uverbs".
	Name() string
	// Devices lists what is there now. An absent subsystem is an empty list,
	// an unreadable one an error.
	Devices() ([]DeviceInfo, error)
	// Open opens the device called name.
	Open(name string) (ContextDriver, error)
}

// A ServingProvider is a Provider that lists devices for which it may have no driver.
type ServingProvider interface {
	Provider
	// Serves reports whether it has one.
	Serves(DeviceInfo) bool
}

// An ExplainingProvider is a Provider that knows which limits make its devices fail.
type ExplainingProvider interface {
	Provider
	// Explain is for [Error.Explain]. It says LimitUnknown of devices that are not its own.
	Explain(*Error) (l Limit, remedy string)
}

// ContextDriver is an open device of a provider.
type ContextDriver interface {
	// QueryDevice returns what the device can do, QueryPort the state of a port.
	QueryDevice() (DeviceAttr, error)
	QueryPort(port uint8) (PortAttr, error)
	// QueryGIDs lists the GID table of a port without its empty rows.
	QueryGIDs(port uint8) ([]GIDEntry, error)
	// QueryPKey returns a row of the P_Key table of a port, which has it.
	QueryPKey(port uint8, index uint16) (uint16, error)
	// AllocPD and CreateCompChannel make an object that the caller closes.
	AllocPD() (PDDriver, error)
	CreateCompChannel() (CompChannelDriver, error)
	// CreateCQ makes a completion queue of at least attr.CQE entries and
	// sets attr.CQE to what it has. ch is nil or was made by this driver.
	CreateCQ(attr *CQAttr, ch CompChannelDriver) (CQDriver, error)
	// NextEvent waits for an asynchronous event. It ends with ErrClosed when
	// the context is closed.
	NextEvent() (DriverEvent, error)
	Close() error
}

// PDDriver is a protection domain of a provider.
type PDDriver interface {
	// AllocMR maps length bytes outside the Go heap, not inherited by a
	// forked child, and registers them. The memory is zero and page aligned.
	AllocMR(length int, access Access, opt MROptions) (MRDriver, error)
	// RegisterMR registers memory of the caller, which stays pinned and must
	// stay reachable until the MR is closed.
	RegisterMR(mem []byte, access Access) (MRDriver, error)
	// CreateQP makes a QP in RESET and sets attr.Cap to what it has.
	CreateQP(attr *QPInitAttr, send, recv CQDriver, srq SRQDriver) (QPDriver, error)
	// CreateSRQ makes an SRQ and sets attr to what it has.
	CreateSRQ(attr *SRQAttr) (SRQDriver, error)
	Dealloc() error
}

// The interfaces that follow are what only some providers have. This package
// asks for them where the device's capabilities say that they are there.
type (
	// AddressDriver is a PDDriver of a device with CapUD.
	AddressDriver interface {
		CreateAH(av *AddressVector) (AHDriver, error)
	}
	// WindowDriver is a PDDriver of a device with CapMemWindow.
	WindowDriver interface {
		AllocMW(typ MWType) (MWDriver, error)
	}
	// DMABufDriver is a PDDriver of a device with CapDMABuf.
	DMABufDriver interface {
		RegisterDMABuf(fd int, offset uint64, length int, iova uint64, access Access) (MRDriver, error)
	}
	// ReregisterDriver is an MRDriver of a device with CapReregister. mem is
	// nil and pd too if they stay. iova is where the addresses of mem begin, 0 for its own.
	ReregisterDriver interface {
		Reregister(mem []byte, iova uint64, pd PDDriver, access Access, mask MRChange) error
	}
	// IOVADriver is a PDDriver of a device with CapIOVA, whose AllocMR looks at MROptions.IOVA.
	IOVADriver interface {
		RegisterMRAt(mem []byte, iova uint64, access Access) (MRDriver, error)
	}
	// NullDriver is a PDDriver of a device with CapNullMR. The MR has no Bytes.
	NullDriver interface {
		AllocNullMR() (MRDriver, error)
	}
	// DeviceMemoryDriver is a ContextDriver, and DMRegionDriver a PDDriver, of a device
	// with CapDeviceMemory. The MR has no Bytes, and addresses from 0 on.
	DeviceMemoryDriver interface {
		AllocDM(length int) (DMDriver, error)
	}
	DMRegionDriver interface {
		RegisterDM(dm DMDriver, offset, length int, access Access) (MRDriver, error)
	}
	// AllMemoryDriver is a PDDriver of a device with CapRegisterAll. The MR has no
	// Bytes, and addresses from 0 on.
	AllMemoryDriver interface {
		RegisterAll(access Access) (MRDriver, error)
	}
	// AdviseDriver is a PDDriver of a device with CapAdviseMR.
	AdviseDriver interface {
		AdviseMR(advice Advice, list []SGE) error
	}
	// MulticastDriver is a QPDriver, of service UD, of a device with CapMulticast.
	MulticastDriver interface {
		AttachMulticast(gid GID, lid uint16) error
		DetachMulticast(gid GID, lid uint16) error
	}
	// ModerationDriver is a CQDriver of a device with CapModerateCQ. The period is in whole
	// microseconds. Without a count, or without a period, nothing is held back.
	ModerationDriver interface {
		Moderate(count int, period time.Duration) error
	}
	// WallTimeDriver is a ContextDriver of a device with CapWallTime.
	WallTimeDriver interface {
		WallTime(timestamp uint64) (time.Time, error)
	}
	// ClockDriver is a ContextDriver of a device with CapClock.
	ClockDriver interface {
		Clock() (uint64, error)
	}
	// XRCDriver is a ContextDriver of a device with CapXRC. file is nil for a domain
	// that nobody shares. The PDDriver of the device makes QPs of QPTypeXRCInitiator,
	// with the send CQ twice.
	XRCDriver interface {
		OpenXRCDomain(file *os.File) (XRCDomainDriver, error)
	}
	// RNRDriver is a ContextDriver of a device that may count how often a
	// request of this side found no receive at its peer. It is asked rarely.
	RNRDriver interface {
		RNRs() (count uint64, counted bool)
	}
	// WQEDriver is a QPDriver that knows how long a request is in its queue, for
	// tracers. wr was posted.
	WQEDriver interface {
		WQEBytes(wr *SendWR) int
	}
	// StateDriver is a QPDriver whose connection is made by another part of
	// the kernel, which moves the QP unseen by the provider (iWARP). The
	// connection manager calls Entered.
	StateDriver interface {
		Entered(state QPState)
	}
)

// XRCDomainDriver is an XRC domain of a provider. CreateQP and OpenQP give a target QP.
type XRCDomainDriver interface {
	CreateSRQ(pd PDDriver, cq CQDriver, attr *SRQAttr) (XRCSRQDriver, error)
	CreateQP() (QPDriver, error)
	OpenQP(num uint32) (QPDriver, error)
	Close() error
}

// XRCSRQDriver is an SRQ of an XRC domain. Requests name it by its number, which is not 0.
type XRCSRQDriver interface {
	SRQDriver
	Num() uint32
}

// DMDriver is memory of a device. Read and Write copy at least one byte, at an offset; all
// of b lies inside.
type DMDriver interface {
	Read(b []byte, offset int) error
	Write(b []byte, offset int) error
	Free() error
}

// AHDriver is an address handle of a provider.
type AHDriver interface {
	Destroy() error
}

// MWDriver is a memory window of a provider.
type MWDriver interface {
	RKey() uint32
	Dealloc() error
}

// MRDriver is a memory region of a provider.
type MRDriver interface {
	Bytes() []byte
	// Addr is the address by which work requests name the first byte.
	Addr() uint64
	LKey() uint32
	RKey() uint32
	Deregister() error
}

// CompChannelDriver is a completion channel of a provider: a descriptor on
// Go's netpoller.
type CompChannelDriver interface {
	// Wait parks the goroutine until a CQ of this channel that was armed has
	// an event, until deadline (zero: none), Wake or Close.
	Wait(deadline time.Time) error
	// WaitThread is Wait, but blocks the operating system thread, which
	// wakes sooner. Providers without CapThreadWait call Wait.
	WaitThread(deadline time.Time) error
	// Wake ends one present or the next future Wait or WaitThread with nil.
	Wake()
	Close() error
}

// CQDriver is a completion queue of a provider.
type CQDriver interface {
	// Poll moves up to len(wcs) completions into wcs.
	Poll(wcs []WC) (int, error)
	// Arm asks for one event on the channel when the next completion
	// arrives (only a solicited or failed one if solicited is set). A
	// completion that arrived before Arm gives no event: poll again after it.
	// A CQ that is armed for any completion is not to be weakened by Arm(true).
	Arm(solicited bool) error
	// Disarm withdraws Arm as far as the device allows; an event may still
	// come. It is a hint.
	Disarm()
	Resize(cqe int) (int, error)
	Destroy() error
}

// QPDriver is a queue pair of a provider.
type QPDriver interface {
	Num() uint32
	// Modify applies the attributes in mask. The caller has checked the mask
	// against the transition.
	Modify(attr *QPAttr, mask QPAttrMask) error
	Query() (QPAttr, error)
	// PostSend and PostRecv take requests in order and return how many they
	// took; with an error, it is about the next one.
	PostSend(wrs []SendWR) (int, error)
	PostRecv(wrs []RecvWR) (int, error)
	Destroy() error
}

// SRQDriver is a shared receive queue of a provider.
type SRQDriver interface {
	PostRecv(wrs []RecvWR) (int, error)
	Modify(attr SRQAttr, mask SRQAttrMask) error
	Query() (SRQAttr, error)
	Destroy() error
}

var providers struct {
	sync.RWMutex
	byName map[string]Provider
}

// Register adds a provider; provider packages call it from init. It panics
// if the name is taken.
func Register(p Provider) {
	providers.Lock()
	defer providers.Unlock()
	if providers.byName == nil {
		providers.byName = make(map[string]Provider)
	}
	if _, dup := providers.byName[p.Name()]; dup {
		panic("verbs: provider registered twice: " + p.Name())
	}
	providers.byName[p.Name()] = p
}

// ProvidersVar names providers in the order in which they are asked for devices that
// several have, "ibverbs,uverbs" for instance. Those it does not name come after them.
const ProvidersVar = "RAMJET_PROVIDERS"

// defaultOrder is the order of providers that ProvidersVar does not name. Any other comes
// after them, by name.
var defaultOrder = []string{"soft", "uverbs"}

// orderedProviders returns the providers in the order in which they are asked.
func orderedProviders() []Provider {
	providers.RLock()
	defer providers.RUnlock()
	list := make([]Provider, 0, len(providers.byName))
	for _, p := range providers.byName {
		list = append(list, p)
	}
	order := append(strings.Split(os.Getenv(ProvidersVar), ","), defaultOrder...)
	place := func(p Provider) int {
		if i := slices.Index(order, p.Name()); i >= 0 {
			return i
		}
		return len(order)
	}
	slices.SortFunc(list, func(a, b Provider) int {
		return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a.Name(), b.Name()))
	})
	return list
}

// candidate is a provider that lists a device.
type candidate struct {
	Provider
	info   DeviceInfo
	serves bool
}

// candidates returns who lists which device, those that serve it before those that only
// know of it, with the first error of a provider that could not list.
func candidates() (byDevice map[string][]candidate, order []string, err error) {
	byDevice = make(map[string][]candidate)
	for _, p := range orderedProviders() {
		list, listErr := p.Devices()
		if listErr != nil && err == nil {
			err = fmt.Errorf("provider %s: %w", p.Name(), listErr)
		}
		list = slices.Clone(list)
		slices.SortFunc(list, func(a, b DeviceInfo) int { return cmp.Compare(a.Name, b.Name) })
		for _, d := range list {
			if byDevice[d.Name] == nil {
				order = append(order, d.Name)
			}
			s, asks := p.(ServingProvider)
			byDevice[d.Name] = append(byDevice[d.Name], candidate{p, d, !asks || s.Serves(d)})
		}
	}
	for _, list := range byDevice {
		slices.SortStableFunc(list, func(a, b candidate) int {
			switch {
			case a.serves == b.serves:
				return 0
			case a.serves:
				return -1
			}
			return 1
		})
	}
	return byDevice, order, err
}

// Devices lists the devices of all providers that the program has linked in,
// ordered by provider and name. A device that several have is there once, with the one
// that [Open] asks first. If a provider could not list its devices, its
// error is returned beside the devices of the others.
func Devices() ([]DeviceInfo, error) {
	byDevice, order, err := candidates()
	var all []DeviceInfo
	for _, name := range order {
		all = append(all, byDevice[name][0].info)
	}
	if err != nil {
		err = fmt.Errorf("verbs: list devices of %w", err)
	}
	return all, err
}

// Open opens the device called name, whichever provider has it. Of several, those that
// have a driver for the device come first, then those that the variable
// RAMJET_PROVIDERS names, in its order, then "soft" and "uverbs", then the others by name.
// One that cannot open the device lets the next one try, and the error is that of the
// first. It wraps ErrNoDevice if there is none, and in any case what kept a provider from
// looking.
func Open(name string) (*Context, error) {
	byDevice, _, err := candidates()
	var first *Error
	for _, p := range byDevice[name] {
		ctx, err := openWith(p, name)
		if err == nil {
			return ctx, nil
		}
		if first == nil {
			first = err
		}
	}
	if first == nil {
		first = &Error{Op: "open", Device: name, Err: ErrNoDevice, Hint: "verbs.Devices lists what is there"}
	}
	if err != nil { // who could not list may be the one that serves it
		first.Err = fmt.Errorf("%w: %w", first.Err, err)
	}
	return nil, first
}
