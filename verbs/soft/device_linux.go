package soft

import (
	"fmt"
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/random"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/eventqueue"
	"github.com/seed-b9b531af/ramjet/verbs/internal/serial"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"golang.org/x/sys/unix"
)

func init() { verbs.Register(provider{}) }

type provider struct{}

// The limits of the device. They bound what one program can do to itself
// more than what the machine could do.
const (
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
			verbs.CapSRQ | verbs.CapThreadWait | verbs.CapResizeCQ | verbs.CapInlineIsTransfer |
			verbs.CapMemWindow | verbs.CapReregister | verbs.CapAtomicWrite | verbs.CapFlush | verbs.CapUC | verbs.CapUD | verbs.CapMulticast |
			verbs.CapModerateCQ | verbs.CapTimestamps | verbs.CapWallTime | verbs.CapClock | verbs.CapIOVA | verbs.CapNullMR |
			verbs.CapOnDemandPaging | verbs.CapAdviseMR,
		ODP:     onDemand,
		ClockHz: uint64(time.Second), TimestampMask: math.MaxUint64,
		MaxModerationCount: maxModerationCount, MaxModerationPeriod: maxModerationPeriod,
		MaxMRSize: protocol.MaxMRSize, MaxMR: maxMR, MaxPD: maxPD,
		MaxQP: maxQP, MaxQPWR: maxQPWR, MaxSGE: maxSGE, MaxInline: maxInline,
		MaxQPInitRdAtomic: maxRdAtomic, MaxQPRdAtomic: maxRdAtomic,
		MaxCQ: maxCQ, MaxCQE: maxCQE,
		MaxSRQ: maxSRQ, MaxSRQWR: maxQPWR, MaxSRQSGE: maxSGE,
		MaxMW: maxMW, MaxAH: maxAH,
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

// device is an open context. Its GID names it to the other processes of the
// host.
//
// Lock order, outermost first: pairing (process wide), device.mu, qp.sendMu,
// qp.recvMu, cq.pollMu, window.mu, channel.mu, and then the leaves: device.keys,
// localQueue.mu, srq.mu, region.told (that of a window before that of its region), below which
// are inbound.grants and linkReader.mu.
type device struct {
	gid      verbs.GID
	name     string
	opened   time.Time // where the clock begins
	listener *listener

	mu       sync.Mutex
	closed   bool // nothing is made any more; what follows is guarded by mu too
	qps      map[uint32]*qp
	nextQPN  uint32
	pds      map[*pd]struct{}
	cqs      map[*cq]struct{}
	srqs     map[*srq]struct{}
	channels map[*channel]struct{}

	keys      keyTable
	datagrams datagramTable
	routes    datagramRoutes
	handles   atomic.Int64 // address handles

	faults atomic.Pointer[faultState]
	events eventqueue.Queue
	once   sync.Once
}

// keyTable says what a key stands for.
type keyTable struct {
	sync.RWMutex
	byKey   map[uint32]*region // nil once closed
	windows map[uint32]*window // by the upper 24 bits of their keys
}

// devices are the open contexts of this process. QPs whose peer is among
// them pair without a socket.
var devices struct {
	sync.Mutex                                       // of who changes the table
	byGID      atomic.Pointer[map[verbs.GID]*device] // replaced as a whole
}

func openDevice(name string) (*device, error) {
	d := &device{
		name:     name,
		opened:   time.Now(),
		qps:      make(map[uint32]*qp),
		pds:      make(map[*pd]struct{}),
		cqs:      make(map[*cq]struct{}),
		srqs:     make(map[*srq]struct{}),
		channels: make(map[*channel]struct{}),
	}
	d.keys.byKey = make(map[uint32]*region)
	d.keys.windows = make(map[uint32]*window)
	d.datagrams.byNum = make(map[uint32]*datagramQP)
	d.datagrams.groups = make(map[verbs.GID]*group)
	var seed [3]byte
	d.gid = newGID()
	random.Read(seed[:])
	d.nextQPN = uint32(seed[0]) | uint32(seed[1])<<8 | uint32(seed[2])<<16
	var err error
	if d.listener, err = listen(d); err != nil {
		return nil, err
	}
	changeDevices(func(byGID map[verbs.GID]*device) { byGID[d.gid] = d })
	return d, nil
}

// newGID makes the name of a device: random, and not that of a group.
func newGID() (gid verbs.GID) {
	for gid == (verbs.GID{}) || gid.IsMulticast() {
		random.Read(gid[:])
	}
	return gid
}

// deviceOf returns the open context of this process that has the GID, or nil.
func deviceOf(gid verbs.GID) *device {
	return openDevices()[gid]
}

// openDevices returns the table of now, which does not change.
func openDevices() map[verbs.GID]*device {
	if byGID := devices.byGID.Load(); byGID != nil {
		return *byGID
	}
	return nil
}

func changeDevices(change func(byGID map[verbs.GID]*device)) {
	devices.Lock()
	defer devices.Unlock()
	byGID := make(map[verbs.GID]*device)
	maps.Copy(byGID, openDevices())
	change(byGID)
	devices.byGID.Store(&byGID)
}

func (d *device) QueryDevice() (verbs.DeviceAttr, error) { return attrOf(d.name), nil }

// clock counts nanoseconds. They are those of Unix time when the device was opened, and none is
// left out or repeated when that is set.
func (d *device) clock() uint64 { return uint64(d.opened.UnixNano() + int64(time.Since(d.opened))) }

// Clock is what the clock shows now.
func (d *device) Clock() (uint64, error) {
	if d.ended() {
		return 0, verbs.ErrClosed
	}
	return d.clock(), nil
}

// WallTime counts back from now: the host's clock may have been set since the device was opened.
func (d *device) WallTime(ticks uint64) (time.Time, error) {
	if d.ended() {
		return time.Time{}, verbs.ErrClosed
	}
	return time.Now().Add(time.Duration(ticks - d.clock())), nil
}

// rnrs counts how often requests of this process found no receive. It outlives
// the devices, which are opened and closed with their last user.
var rnrs atomic.Uint64

// RNRs tells of all devices of the process: there is one outside of tests.
func (d *device) RNRs() (count uint64, counted bool) { return rnrs.Load(), true }

func (d *device) QueryPort(port uint8) (verbs.PortAttr, error) {
	if d.ended() {
		return verbs.PortAttr{}, verbs.ErrClosed
	}
	if port != 1 {
		return verbs.PortAttr{}, fmt.Errorf("%w: port %d, there is only 1", verbs.ErrInvalid, port)
	}
	return verbs.PortAttr{
		State: verbs.PortActive, MaxMTU: verbs.MTU4096, ActiveMTU: verbs.MTU4096, GIDTableLen: 1, PKeyTblLen: 1, MaxMsgSize: maxMessageSize,
	}, nil
}

func (d *device) QueryGIDs(port uint8) ([]verbs.GIDEntry, error) {
	if _, err := d.QueryPort(port); err != nil {
		return nil, err
	}
	return []verbs.GIDEntry{{GID: d.gid, Index: 0, Port: port, Type: verbs.GIDTypeSoft}}, nil
}

func (d *device) QueryPKey(uint8, uint16) (uint16, error) { return 0xffff, nil }

func (d *device) NextEvent() (verbs.DriverEvent, error) { return d.events.Next() }

// raise queues an event. A program that never fetches them loses the newest.
func (d *device) raise(ev verbs.DriverEvent) { _ = d.events.Raise(ev) }

// addQP gives q a number that was not in use for long.
func (d *device) addQP(q *qp) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.newNumber(&q.num); err != nil {
		return err
	}
	d.qps[q.num] = q
	return nil
}

// newNumber finds the number of a QP. mu is held.
func (d *device) newNumber(num *uint32) error {
	if d.closed {
		return verbs.ErrClosed
	}
	d.datagrams.RLock()
	defer d.datagrams.RUnlock()
	if err := mayMake("QPs", len(d.qps)+len(d.datagrams.byNum), maxQP); err != nil {
		return err
	}
	for {
		d.nextQPN = (d.nextQPN + 1) & (1<<24 - 1)
		// 0 and 1 are the management QPs of the specification, and all ones those of
		// a group.
		if n := d.nextQPN; n > 1 && n != groupQPN && d.qps[n] == nil && d.datagrams.byNum[n] == nil {
			*num = n
			return nil
		}
	}
}

// mayMake returns an error if there are n objects of a kind, and may be no more.
func mayMake(kind string, n, most int) error {
	if n < most {
		return nil
	}
	return fmt.Errorf("%d %s: %w", n, kind, unix.ENOMEM)
}

func (d *device) removeQP(q *qp) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.qps, q.num)
}

func (d *device) qp(num uint32) *qp {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.qps[num]
}

func (d *device) allQPs() []*qp {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]*qp, 0, len(d.qps))
	for _, q := range d.qps {
		list = append(list, q)
	}
	return list
}

func (d *device) allCQs() []*cq {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]*cq, 0, len(d.cqs))
	for c := range d.cqs {
		list = append(list, c)
	}
	return list
}

// Close tears down what is left, in the order in which things depend on each
// other.
func (d *device) Close() error {
	d.once.Do(func() {
		d.events.Close()
		d.listener.close()
		d.mu.Lock()
		d.closed = true
		d.mu.Unlock()
		// A call that is making a QP holds its life until it is whole, one that
		// destroys it until it is out of the table.
		for left := d.allQPs(); len(left) > 0; left = d.allQPs() {
			for _, q := range left {
				_ = q.Destroy() // it may be destroyed already
			}
		}
		for left := d.allDatagramQPs(); len(left) > 0; left = d.allDatagramQPs() {
			for _, q := range left {
				_ = q.Destroy() // as above
			}
		}
		d.mu.Lock()
		channels := d.channels
		d.channels = nil
		d.endObjects()
		d.mu.Unlock()
		// Until here quiesce waits for our posts too.
		changeDevices(func(byGID map[verbs.GID]*device) { delete(byGID, d.gid) })
		d.listener.wait() // ends with the links, which the QPs have closed
		for ch := range channels {
			_ = ch.Close()
		}
		d.keys.Lock()
		regions := d.keys.byKey
		d.keys.byKey = nil
		d.keys.Unlock()
		for _, r := range regions {
			if r.window == nil {
				r.windows.end()
				_ = r.end() // it may be closed already
			}
		}
	})
	return nil
}

func (d *device) ended() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// endObjects closes what has no QPs any more. The caller holds mu.
func (d *device) endObjects() {
	for p := range d.pds {
		p.users.end()
	}
	for c := range d.cqs {
		c.end()
	}
	for s := range d.srqs {
		s.users.end()
	}
	d.pds, d.cqs, d.srqs = nil, nil, nil
}

// quiesce returns when every post and every poll of this process that began
// before it has ended. It is called between marking memory as gone and unmapping
// it, and so the data path needs no reference counts.
func quiesce() {
	var sections []*serial.Section
	for _, d := range openDevices() {
		for _, q := range d.allQPs() {
			sections = append(sections, &q.sendMu)
		}
		for _, q := range d.allDatagramQPs() {
			q.sendMu.Lock() // ends with the post that holds it
			//lint:ignore SA2001 waiting for the holder is the purpose
			q.sendMu.Unlock()
			q.recvMu.Lock() // ends with the delivery that holds it
			//lint:ignore SA2001 waiting for the holder is the purpose
			q.recvMu.Unlock()
		}
		for _, c := range d.allCQs() {
			sections = append(sections, &c.pollMu)
		}
	}
	serial.Outlast(sections) // ends with the posts and polls
}

// pd is a protection domain: what MRs and QPs have in common.
type pd struct {
	dev   *device
	users users // MRs, QPs and SRQs
}

func (d *device) AllocPD() (verbs.PDDriver, error) {
	p := &pd{dev: d}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, verbs.ErrClosed
	}
	if err := mayMake("PDs", len(d.pds), maxPD); err != nil {
		return nil, err
	}
	d.pds[p] = struct{}{}
	return p, nil
}

func (p *pd) Dealloc() error {
	if err := p.users.close(); err != nil {
		return err
	}
	p.dev.mu.Lock()
	defer p.dev.mu.Unlock()
	delete(p.dev.pds, p)
	return nil
}

// users counts what needs an object, and lets it be closed only while that is
// nothing: of one who begins to use an object and one who closes it, one
// fails. The zero value is open and unused.
type users struct{ n atomic.Int64 }

// closedBit is set in the count of an object that is closed.
const closedBit = 1 << 62

// add counts one more; ErrClosed if the object is closed.
func (u *users) add() error {
	if u.n.Add(1)&closedBit != 0 {
		u.n.Add(-1)
		return verbs.ErrClosed
	}
	return nil
}

// done takes back what add has counted.
func (u *users) done() { u.n.Add(-1) }

// close closes the object: ErrBusy if it is in use, ErrClosed if it is closed
// already.
func (u *users) close() error {
	for !u.n.CompareAndSwap(0, closedBit) {
		if n := u.n.Load(); n&closedBit != 0 {
			return verbs.ErrClosed
		} else if n != 0 {
			return verbs.ErrBusy
		}
	}
	return nil
}

// end closes the object together with what uses it.
func (u *users) end() { u.n.Or(closedBit) }

func (u *users) closed() bool { return u.n.Load()&closedBit != 0 }
