package kernelcm

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"golang.org/x/sys/unix"
)

// cmID is an rdma_cm_id of the kernel: a connection, a listener on one
// address, or a membership in a group.
type cmID struct {
	file *ucmFile
	uid  uint64
	num  uint32 // the kernel's name for it
	once sync.Once
	busy sync.WaitGroup // commands that nobody waits for; destroy does

	mu    sync.Mutex
	queue []cmEvent     // guarded by mu; what next has not taken yet
	on    func(cmEvent) // guarded by mu; takes the events instead of next
	ready chan struct{} // has a token when queue may not be empty
}

// newCMID makes an id.
func newCMID(space portSpace) (*cmID, error) {
	ucm.Lock()
	if ucm.file == nil {
		f, err := openUCM()
		if err != nil {
			ucm.Unlock()
			return nil, err
		}
		ucm.file = f
		go f.read()
	}
	id := ucm.file.register(0)
	ucm.Unlock()

	var num uint32
	err := pinned(&num, func(addr uint64) error {
		return command(id.file, ucmCreateID, &ucmCreateIDBody{uid: id.uid, response: addr, space: uint16(space)}, 4)
	})
	if err != nil {
		id.file.unregister(id)
		return nil, err
	}
	id.num = num
	return id, nil
}

// destroy ends the id and what it stands for: a peer that waits is rejected,
// one that is connected is told. It waits until the kernel is done with the
// id, which on iWARP may take until a handshake has timed out. No command names the id after
// that: the kernel gives its number to the next one at once.
func (id *cmID) destroy() {
	id.once.Do(func() {
		id.busy.Wait() // as the kernel would
		var events uint32
		// An error means that the file was closed, and all ids with it.
		_ = pinned(&events, func(addr uint64) error {
			return command(id.file, ucmDestroyID, &ucmDestroyIDBody{response: addr, id: id.num}, 4)
		})
		id.file.unregister(id)
	})
}

// deliver is called by the goroutine that reads events; it does not block.
func (id *cmID) deliver(ev cmEvent) {
	id.mu.Lock()
	on := id.on
	if on == nil {
		id.queue = append(id.queue, ev)
	}
	id.mu.Unlock()
	if on != nil {
		on(ev)
		return
	}
	select {
	case id.ready <- struct{}{}:
	default:
	}
}

// Next waits for the next event that says how the connection goes on. It
// leaves out hints about a change of the network behind the address. The
// error is that of ctx, or of the descriptor.
func (id *cmID) next(ctx context.Context) (cmEvent, error) {
	for {
		if ev, ok := id.take(); ok {
			if ev.kind == eventLost {
				return ev, ev.lost
			}
			return ev, nil
		}
		// Ends with an event, the loss of the descriptor, or ctx.
		select {
		case <-id.ready:
		case <-ctx.Done():
			return cmEvent{}, handshake.ContextError(ctx)
		}
	}
}

func (id *cmID) take() (cmEvent, bool) {
	id.mu.Lock()
	defer id.mu.Unlock()
	for len(id.queue) > 0 {
		ev := id.queue[0]
		id.queue = id.queue[1:]
		if ev.kind != eventAddrChange && ev.kind != eventTimewaitExit {
			return ev, true
		}
	}
	return cmEvent{}, false
}

// handle lets on have all events from now on, those that wait first. on runs
// on the goroutine that reads events and must not block.
func (id *cmID) handle(on func(cmEvent)) {
	for {
		id.mu.Lock()
		queue := id.queue
		id.queue = nil
		if len(queue) == 0 {
			id.on = on
			id.mu.Unlock()
			return
		}
		id.mu.Unlock()
		for _, ev := range queue {
			on(ev)
		}
	}
}

func (id *cmID) bind(addr netip.AddrPort) error {
	body := ucmBindBody{id: id.num}
	var err error
	if body.addrSize, err = encodeSockaddr(&body.addr, addr); err != nil {
		return err
	}
	return command(id.file, ucmBind, &body, 0)
}

func (id *cmID) listen(backlog int) error {
	return command(id.file, ucmListen, &ucmListenBody{id: id.num, backlog: uint32(backlog)}, 0)
}

// resolveAddr finds the device by which dst is reached, from src if that is
// valid. The outcome is an event.
func (id *cmID) resolveAddr(src netip.Addr, dst netip.AddrPort, timeoutMS uint32) error {
	body := ucmResolveAddrBody{id: id.num, timeoutMS: timeoutMS}
	var err error
	if body.dstSize, err = encodeSockaddr(&body.dst, dst); err != nil {
		return err
	}
	if src.IsValid() {
		if body.srcSize, err = encodeSockaddr(&body.src, netip.AddrPortFrom(src, 0)); err != nil {
			return err
		}
	}
	return command(id.file, ucmResolveAddr, &body, 0)
}

func (id *cmID) resolveRoute(timeoutMS uint32) error {
	return command(id.file, ucmResolveRoute, &ucmResolveRouteBody{id: id.num, timeoutMS: timeoutMS}, 0)
}

// query returns the addresses of an id, and its device.
func (id *cmID) query() (idAddr, error) {
	var r ucmQueryAddrResponse
	r.deviceIndex = noDeviceIndex
	err := pinned(&r, func(addr uint64) error {
		return command(id.file, ucmQuery, &ucmQueryBody{response: addr, id: id.num, option: queryAddr}, querySize)
	})
	if err != nil {
		return idAddr{}, err
	}
	return idAddr{
		local:       decodeSockaddr(&r.src, r.srcSize),
		remote:      decodeSockaddr(&r.dst, r.dstSize),
		guid:        r.nodeGUID,
		deviceIndex: r.deviceIndex,
		port:        r.port,
	}, nil
}

// idAddr says where an id is.
type idAddr struct {
	local, remote netip.AddrPort
	guid          [8]byte // node GUID of the device, zero if there is none
	deviceIndex   uint32  // noDeviceIndex if the kernel does not tell
	port          uint8
}

const noDeviceIndex = 1<<32 - 1

func (id *cmID) setOption(name uint32, value []byte) error {
	return pinned(&value[0], func(addr uint64) error {
		return command(id.file, ucmSetOption, &ucmSetOptionBody{
			value: addr, id: id.num, level: ucmLevelID, name: name, length: uint32(len(value)),
		}, 0)
	})
}

// join asks for the port of an id, whose address is resolved, to become a member
// of a group. The outcome is an event. The membership ends with the id.
func (id *cmID) join(group netip.Addr, flags uint16) error {
	body := ucmJoinBody{uid: id.uid, id: id.num, flags: flags}
	var err error
	if body.addrSize, err = encodeSockaddr(&body.addr, netip.AddrPortFrom(group, 0)); err != nil {
		return err
	}
	var number uint32
	return pinned(&number, func(addr uint64) error {
		body.response = addr
		return command(id.file, ucmJoin, &body, 4)
	})
}

func (id *cmID) connect(p *ucmConnParam) error {
	return command(id.file, ucmConnect, &ucmConnectBody{param: *p, id: id.num}, 0)
}

// accept answers a request; its events have the uid of the id from then on.
func (id *cmID) accept(p *ucmConnParam) error {
	return command(id.file, ucmAccept, &ucmAcceptBody{uid: id.uid, param: *p, id: id.num}, 0)
}

// establish ends the dialer's handshake, once its QP is at RTS.
func (id *cmID) establish() error {
	return command(id.file, ucmAccept, &ucmAcceptBody{id: id.num}, 0)
}

func (id *cmID) reject(privateData []byte) error {
	body := ucmRejectBody{id: id.num, privateDataLen: uint8(len(privateData))}
	copy(body.privateData[:], privateData)
	return command(id.file, ucmReject, &body, 0)
}

func (id *cmID) disconnect() error {
	return command(id.file, ucmDisconnect, &ucmDisconnectBody{id: id.num}, 0)
}

// qpAttr returns the attributes that the kernel has for a QP on its way to
// state.
func (id *cmID) qpAttr(state uint32) (ucmQPAttr, error) {
	var r ucmQPAttr
	err := pinned(&r, func(addr uint64) error {
		return command(id.file, ucmInitQPAttr, &ucmInitQPAttrBody{response: addr, id: id.num, state: state}, qpAttrSize)
	})
	return r, err
}

// isGone reports whether an errno of a command about a peer's request means
// that the peer is no longer there.
func isGone(err error) bool {
	for _, e := range []error{unix.EINVAL, unix.ECONNRESET, unix.ENOTCONN, unix.ENXIO, unix.ENOENT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
