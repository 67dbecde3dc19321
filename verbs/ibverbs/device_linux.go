//go:build amd64 || arm64

package ibverbs

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/netpoll"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

// device is an open context of the library.
//
// Lock order, outermost first: life of the device; of the objects qp.modify, qp.life, target.life,
// qp.groups, lifetime.mu, qp.send, qp.recv, srq.mu, xrc, cq.mu, channel.mu; and last mu. The
// lifetime.mu of what a request names (address handle, window, region) comes after qp.send: under
// it nothing else is taken but that of the PD, and mu. The library has locks of its own, which it
// takes inside of a call.
type device struct {
	lib       *library
	entry     rdmahost.Device
	context   uintptr // struct ibv_context
	ops       [contextOps]uintptr
	vectors   int
	extension verbsContext // those that came later, 0 if they are not there
	events    *netpoll.Events
	clock     clock

	// life is held for reading by every call but those of the data path, which ask their
	// objects, so that the context is not closed under it.
	life   sync.RWMutex
	closed bool // guarded by life

	// gone: the device was removed.
	gone atomic.Bool

	// xrc is held for writing while an SRQ of an XRC domain is destroyed and its
	// completions are taken out of its CQ, and for reading by who makes what may get
	// its index or number.
	xrc sync.RWMutex

	singleThreaded atomic.Int32 // thread domains, see maxThreadDomains

	mu      sync.Mutex
	objects map[uintptr]object // guarded by mu: what is open, by its address in the library
}

// object is what is made from a device.
type object interface {
	// rank says when it is destroyed with the device: what uses others goes before them.
	rank() int
	// destroy destroys it.
	destroy() error
}

// queues are objects that programs use without during.
type queues interface {
	// abandon has no call of the data path reach the library any more.
	abandon()
}

const (
	rankMW = iota // a QP of rxe waits a minute for windows that are bound to it
	rankQP
	rankAH
	rankSRQ
	rankDomain
	rankMR
	rankDM
	rankCQ
	rankChannel
	rankPD
)

func openDevice(entry rdmahost.Device) (*device, error) {
	l, err := loaded()
	if err != nil {
		return nil, err
	}
	context, err := l.openContext(entry.Name)
	if err != nil {
		return nil, err
	}
	c := view[ibvContext](context)
	d := &device{
		lib: l, entry: entry, context: context, ops: c.ops, extension: extensionOf(context), vectors: int(c.numCompVectors), objects: make(map[uintptr]object),
	}
	if err = d.checkContext(c); err == nil {
		err = d.openEvents(int(c.asyncFD))
	}
	if err != nil {
		number(l.closeDevice, context)
		return nil, err
	}
	return d, nil
}

// checkContext looks whether the context is what it is taken for: its descriptor is that
// of the device, and the operations are there.
func (d *device) checkContext(c *ibvContext) error {
	for _, op := range []int{opPollCQ, opReqNotifyCQ, opPostSRQRecv, opPostSend, opPostRecv} {
		if d.ops[op] == 0 {
			return unknownLayout("ibv_context")
		}
	}
	for _, fd := range []int32{c.cmdFD, c.asyncFD} {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			return unknownLayout("ibv_context")
		}
	}
	return nil
}

// add lists an object that was made. The caller is in during.
func (d *device) add(address uintptr, o object) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.objects[address] = o
}

// drop takes an object off the list before the library frees it, since another one may
// then have its address.
func (d *device) drop(address uintptr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.objects, address)
}

// restore lists again what was dropped and is not destroyed: the list keeps memory of the caller.
func (d *device) restore(address uintptr, o object, err error) (stays bool) {
	if stays = !destroyed(err); stays {
		d.add(address, o)
	}
	return stays
}

// find returns the object that an event is about, nil if it is being destroyed.
func (d *device) find(address uintptr) object {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.objects[address]
}

// during runs what calls the library about the device.
func (d *device) during(f func() error) error {
	d.life.RLock()
	defer d.life.RUnlock()
	if d.closed {
		return verbs.ErrClosed
	}
	return f()
}

// errGone is the error of everything on a device that was removed.
var errGone = netpoll.ErrGone

// lost is called when it shows that the device was removed: completions that were asked
// for never come. Those who wait are woken and told.
func (d *device) lost() {
	if d.gone.Swap(true) {
		return
	}
	d.events.Raise(verbs.DriverEvent{Type: verbs.EventDeviceFatal})
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range d.objects {
		if ch, ok := o.(*channel); ok {
			ch.Wake()
		}
	}
}

// Close destroys what is open, what uses others before them. What stays the kernel destroys
// with the context, which the library frees: nothing may call it about that any more. But the library
// leaves queues mapped that it has not destroyed, and a mapping of the device keeps the kernel's
// context until the process ends: so regions that stay keep their memory.
func (d *device) Close() error {
	d.life.Lock() // ends with the calls that run
	if d.closed {
		d.life.Unlock()
		return verbs.ErrClosed
	}
	d.closed = true
	d.life.Unlock()

	d.mu.Lock()
	list := slices.SortedFunc(maps.Values(d.objects), func(a, b object) int { return cmp.Compare(a.rank(), b.rank()) })
	d.mu.Unlock()
	for _, o := range list {
		if destroyed(o.destroy()) {
			continue
		}
		switch o := o.(type) {
		case queues:
			o.abandon()
		case *region:
			left.keep(o)
		}
	}
	d.events.Close()
	return failed("ibv_close_device", status(d.lib.closeDevice, d.context))
}

// left are regions that the kernel may have still after Close of their device.
var left regions

type regions struct {
	mu   sync.Mutex
	list []*region // guarded by mu
}

func (l *regions) keep(r *region) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, r)
}

func (d *device) NextEvent() (verbs.DriverEvent, error) { return d.events.Next() }

// RNRs reads the driver's counter, of all ports.
func (d *device) RNRs() (count uint64, counted bool) { return rdmahost.RNRs(d.entry.Name) }

func (d *device) QueryDevice() (verbs.DeviceAttr, error) {
	var attr verbs.DeviceAttr
	err := d.during(func() error {
		out := new(ibvDeviceAttr)
		if err := status(d.lib.queryDevice, d.context, uintptr(unsafe.Pointer(out))); err != nil {
			return failed("ibv_query_device", err)
		}
		more, err := d.queryExtended()
		if err != nil {
			return err
		}
		attr = d.attr(out, more)
		return nil
	})
	if err != nil {
		return verbs.DeviceAttr{}, err
	}
	return attr, d.probe(&attr)
}

// Bits of device_cap_flags (enum ibv_device_cap_flags): a device that has XRC, one that has
// memory windows of a type, and one that can take keys away from peers (memory windows, and
// management extensions).
const (
	capXRC        = 1 << 20
	capWindows    = 1<<17 | 1<<23 | 1<<24
	capInvalidate = 1<<17 | 1<<21
)

// attr translates what the library tells of a device.
func (d *device) attr(q *ibvDeviceAttr, more *ibvDeviceAttrEx) verbs.DeviceAttr {
	a := verbs.DeviceAttr{
		FirmwareVersion:   unix.ByteSliceToString(q.fwVer[:]),
		VendorID:          q.vendorID,
		VendorPartID:      q.vendorPartID,
		HardwareVersion:   q.hwVer,
		SystemImageGUID:   binary.BigEndian.Uint64(q.sysImageGUID[:]),
		KernelCaps:        uint64(q.deviceCapFlags),
		MaxMRSize:         q.maxMRSize,
		MaxQP:             int(q.maxQP),
		MaxQPWR:           int(q.maxQPWR),
		MaxSGE:            int(q.maxSGE),
		MaxSGERead:        int(q.maxSGERead),
		MaxCQ:             int(q.maxCQ),
		MaxCQE:            largestCQ(int(q.maxCQE)),
		MaxMR:             int(q.maxMR),
		MaxPD:             int(q.maxPD),
		MaxSRQ:            int(q.maxSRQ),
		MaxSRQWR:          int(q.maxSRQWR),
		MaxSRQSGE:         int(q.maxSRQSGE),
		MaxMW:             int(q.maxMW),
		MaxAH:             int(q.maxAH),
		MaxQPInitRdAtomic: int(q.maxQPInitRdAtom),
		MaxQPRdAtomic:     int(q.maxQPRdAtom),
		PhysPorts:         int(q.physPortCnt),
		AckDelay:          q.localCAAckDelay,
		CompVectors:       d.vectors,
		Caps:              verbs.CapRegisterSlice | verbs.CapRead | verbs.CapIOVA,
	}
	a.DeviceInfo = d.entry.Info()
	a.Provider = ProviderName
	a.NodeGUID = binary.BigEndian.Uint64(q.nodeGUID[:])
	if d.entry.Transport != verbs.TransportIWARP {
		a.Caps |= verbs.CapWriteWithImm | verbs.CapSendWithImm
	}
	if q.atomicCap != 0 {
		a.Caps |= verbs.CapAtomics
	}
	if q.maxSRQ > 0 && q.maxSRQWR > 0 {
		a.Caps |= verbs.CapSRQ
	}
	if q.deviceCapFlags&capInvalidate != 0 {
		a.Caps |= verbs.CapSendWithInv
	}
	if q.deviceCapFlags&capXRC != 0 && d.hasDomains() {
		a.Caps |= verbs.CapXRC
	}
	if q.maxMcastGrp > 0 {
		a.Caps |= verbs.CapMulticast
	}
	a.ODP = verbs.ODPCaps{
		General: verbs.ODPGeneral(more.odp.general),
		RC:      verbs.ODPOps(more.odp.rc), UC: verbs.ODPOps(more.odp.uc), UD: verbs.ODPOps(more.odp.ud), XRC: verbs.ODPOps(more.xrcODP),
	}
	if a.ODP.General.Has(verbs.ODPSupported) {
		a.Caps |= verbs.CapOnDemandPaging
		if a.ODP.General.Has(verbs.ODPImplicit) {
			a.Caps |= verbs.CapRegisterAll
		}
	}
	if more.maxDMSize > 0 && d.hasMemory() {
		a.Caps |= verbs.CapDeviceMemory
		a.MaxDMSize = more.maxDMSize
	}
	if d.extension.createCQEx != 0 && more.hcaCoreClock > 0 && more.timestampMask > 0 {
		a.Caps |= verbs.CapTimestamps
		a.ClockHz, a.TimestampMask = more.hcaCoreClock*1000, more.timestampMask
	}
	if d.extension.modifyCQ != 0 && more.maxCQCount > 0 && more.maxCQPeriod > 0 {
		a.Caps |= verbs.CapModerateCQ
		a.MaxModerationCount, a.MaxModerationPeriod = int(more.maxCQCount), time.Duration(more.maxCQPeriod)*time.Microsecond
	}
	return a
}

// largestCQ is what is left for completions of a CQ with as many entries.
func largestCQ(entries int) int { return max(1, min(entries-64, entries/5*4)) }

func (d *device) QueryPort(port uint8) (a verbs.PortAttr, err error) {
	if port == 0 {
		return a, fmt.Errorf("%w: ports count from 1", verbs.ErrInvalid)
	}
	err = d.during(func() error {
		q := new(ibvPortAttr)
		if err := status(d.lib.queryPort, d.context, uintptr(port), uintptr(unsafe.Pointer(q))); err != nil {
			return failed("ibv_query_port", err)
		}
		a = verbs.PortAttr{
			State: verbs.PortState(q.state), MaxMTU: verbs.MTU(q.maxMTU), ActiveMTU: verbs.MTU(q.activeMTU),
			GIDTableLen: int(q.gidTblLen), MaxMsgSize: q.maxMsgSize, LID: q.lid, LinkLayer: q.linkLayer,
			PhysState: q.physState, ActiveWidth: q.activeWidth, ActiveSpeed: q.activeSpeed,
			SMLID: q.smLID, LMC: q.lmc, PKeyTblLen: q.pkeyTblLen,
		}
		return nil
	})
	return a, err
}

func (d *device) QueryGIDs(port uint8) (list []verbs.GIDEntry, err error) {
	attr, err := d.QueryPort(port)
	if err != nil {
		return nil, err
	}
	if d.lib.queryGIDTable != 0 {
		err = d.during(func() error {
			list, err = d.gidTable(port, max(attr.GIDTableLen, 1)*max(d.entry.Ports, 1))
			return err
		})
	}
	if d.lib.queryGIDTable == 0 || err != nil && !errors.Is(err, verbs.ErrClosed) {
		return rdmahost.GIDs(d.entry.Name, port)
	}
	return list, err
}

// QueryPKey reads where ibv_query_pkey does.
func (d *device) QueryPKey(port uint8, index uint16) (uint16, error) {
	return rdmahost.PKey(d.entry.Name, port, index)
}

// gidTable asks the library for the table of all ports without empty rows.
func (d *device) gidTable(port uint8, most int) (list []verbs.GIDEntry, err error) {
	rows := make([]ibvGIDEntry, most)
	n, err := count(d.lib.queryGIDTable, d.context, uintptr(unsafe.Pointer(&rows[0])), uintptr(most), 0, unsafe.Sizeof(rows[0]))
	if err != nil {
		return nil, failed("ibv_query_gid_table", err)
	}
	for _, r := range rows[:min(n, most)] {
		if r.port != uint32(port) {
			continue
		}
		e := verbs.GIDEntry{GID: r.gid, Index: int(r.index), Port: port, Type: verbs.GIDType(r.typ), Ifindex: int(r.ifindex)}
		if ifi, err := net.InterfaceByIndex(e.Ifindex); err == nil {
			e.Netdev = ifi.Name
		}
		list = append(list, e)
	}
	return list, nil
}
