//go:build amd64 || arm64

package cm

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

var (
	le = binary.LittleEndian
	be = binary.BigEndian
)

// Port spaces (enum rdma_ucm_port_space).
const (
	spaceIPoIB = 0x0002
	spaceTCP   = 0x0106
	spaceUDP   = 0x0111
	spaceIB    = 0x013f
)

// The types of QPs that matter here (IB_QPT_*).
const (
	typeRC = 2
	typeUD = 4
)

// A state is one of cma.c's and of cm.c's.
type state int

const (
	idle state = iota
	bound
	resolved
	routed
	listening
	requesting // has sent a REQ
	requested  // has got one
	replied    // has got a REP
	replying   // has sent one
	connected
	disconnected
)

// An identifier is an rdma_cm_id of a program.
type identifier struct {
	file     *file
	number   uint32
	uid      uint64
	space    uint16
	kind     byte // of its QP
	state    state
	local    netip.AddrPort
	remote   netip.AddrPort
	onDevice bool
	reuse    bool
	only     bool // its family only
	accepted bool // made by a listener, whose port it has
	reported uint32
	timeout  byte

	memberships []*membership

	// Of a listener:
	backlog int
	pending int           // requests that were not read
	waiting []*identifier // whose requests found no room

	// Of a connection:
	peer   *identifier
	parent *identifier // the listener
	param  connParam   // ours
	psn    uint32
	// The peer's, turned round:
	resources, depth byte
}

// A file is an open /dev/infiniband/rdma_cm.
type file struct {
	host        *Host
	count       *frame.EventCount
	identifiers map[uint32]*identifier
	events      []event
}

// A command is carried out with its body.
type command struct {
	size int // of its body
	run  func(*file, *frame.Message, []byte, int) unix.Errno
}

// commands by number (include/uapi/rdma/rdma_user_cm.h), with the sizes of their structs. Those
// that grew have their first.
var commands = map[uint32]command{
	0: {24, (*file).createID}, 1: {16, (*file).destroyID}, 4: {8, (*file).resolveRoute}, 6: {280, (*file).connect}, 7: {8, (*file).listen},
	8: {288, (*file).accept}, 9: {264, (*file).reject}, 10: {4, (*file).disconnect}, 11: {16, (*file).initQPAttr}, 12: {8, (*file).getEvent},
	14: {24, (*file).setOption}, 15: {8, (*file).notify}, 18: {16, (*file).migrate}, 19: {16, (*file).query}, 20: {136, (*file).bind},
	17: {16, (*file).leaveGroup}, 21: {272, (*file).resolveAddr}, 22: {152, (*file).join},
}

// Write is ucma.c, ucma_write. What is short is filled with zeros, as copy_from_user
// of min(in, size) does.
//
// The functions that checks name are those of drivers/infiniband/core.
func (f *file) Write(m *frame.Message) unix.Errno {
	if len(m.Bytes) < 8 {
		return unix.EINVAL // ucma.c, ucma_write
	}
	in, out := int(le.Uint16(m.Bytes[4:])), int(le.Uint16(m.Bytes[6:]))
	const last = 22 // RDMA_USER_CM_CMD_JOIN_MCAST
	number := le.Uint32(m.Bytes)
	c, ok := commands[number]
	switch {
	case number > last:
		return unix.EINVAL // the same
	case in+8 > len(m.Bytes):
		return unix.EINVAL // the same
	case !ok:
		return unix.ENOSYS // the model does not have it
	}
	body := make([]byte, max(c.size, in))
	copy(body, m.Bytes[8:8+in])
	f.host.network.mu.Lock()
	defer f.host.network.mu.Unlock()
	return c.run(f, m, body, out)
}

// Close destroys what the program has left.
func (f *file) Close() {
	f.host.network.mu.Lock()
	defer f.host.network.mu.Unlock()
	for _, i := range f.identifiers {
		i.destroy()
	}
	f.host.files = slices.DeleteFunc(f.host.files, func(other *file) bool { return other == f })
}

// get returns an id of the file (_ucma_find_context).
func (f *file) get(number uint32) (*identifier, unix.Errno) {
	if i := f.identifiers[number]; i != nil {
		return i, 0
	}
	for _, other := range f.host.files {
		if other.identifiers[number] != nil {
			return nil, unix.EINVAL // ucma.c, _ucma_find_context
		}
	}
	return nil, unix.ENOENT // the same
}

// write answers, as copy_to_user in the functions of ucma.c.
func write(m *frame.Message, at uint64, b []byte) unix.Errno {
	if m.Process().Answer(at, b) != nil {
		return unix.EFAULT // ucma.c, ucma_write: copy_to_user in the functions that it calls
	}
	return 0
}

func words(values ...uint32) (b []byte) {
	for _, v := range values {
		b = le.AppendUint32(b, v)
	}
	return b
}

// createID is ucma_create_id.
func (f *file) createID(m *frame.Message, b []byte, out int) unix.Errno {
	if out < 4 {
		return unix.ENOSPC // ucma.c, ucma_create_id
	}
	i := &identifier{file: f, uid: le.Uint64(b), space: le.Uint16(b[16:]), kind: typeRC}
	switch i.space { // ucma_get_qp_type
	case spaceTCP:
	case spaceUDP, spaceIPoIB:
		i.kind = typeUD
	case spaceIB:
		i.kind = b[18]
	default:
		return unix.EINVAL // ucma.c, ucma_get_qp_type
	}
	i.number = f.host.network.next()
	i.psn = i.number * 0x3cd1 & 0xffffff
	f.identifiers[i.number] = i
	return write(m, le.Uint64(b[8:]), words(i.number))
}

// destroyID is ucma_destroy_id.
func (f *file) destroyID(m *frame.Message, b []byte, out int) unix.Errno {
	if out < 4 {
		return unix.ENOSPC // ucma.c, ucma_destroy_id
	}
	i, errno := f.get(le.Uint32(b[8:]))
	if errno != 0 {
		return errno
	}
	i.destroy()
	return write(m, le.Uint64(b), words(i.reported))
}

// destroy ends an id and what it stands for (rdma_destroy_id and ucma_free_ctx).
func (i *identifier) destroy() {
	f := i.file
	i.leave()
	kept := f.events[:0]
	var children []*identifier
	for _, e := range f.events {
		switch {
		case e.on == i:
			f.count.Take()
			if e.kind == eventConnectRequest {
				children = append(children, e.made)
			}
		default:
			kept = append(kept, e)
		}
	}
	f.events = kept
	delete(f.identifiers, i.number)
	f.host.release(i)
	for _, c := range children {
		c.destroy()
	}
	for _, w := range i.waiting {
		if w.state == requesting {
			w.isNotListenedTo()
		}
	}
}

// migrate takes an id over from another file (ucma_migrate_id).
func (f *file) migrate(m *frame.Message, b []byte, out int) unix.Errno {
	if out < 4 {
		return unix.ENOSPC // ucma.c, ucma_migrate_id
	}
	fd := int(int32(le.Uint32(b[12:])))
	if _, open := m.Process().File(fd); !open {
		return unix.ENOENT // ucma.c, ucma_migrate_id
	}
	from, ok := m.File(fd).(*file)
	if !ok {
		return unix.EINVAL // the same
	}
	i, errno := from.get(le.Uint32(b[8:]))
	if errno != 0 {
		return errno
	}
	if from != f {
		delete(from.identifiers, i.number)
		i.file, f.identifiers[i.number] = f, i
		kept := from.events[:0]
		for _, e := range from.events {
			if e.on == i {
				from.count.Take()
				f.events = append(f.events, e)
				f.count.Add()
			} else {
				kept = append(kept, e)
			}
		}
		from.events = kept
	}
	return write(m, le.Uint64(b), words(i.reported))
}

// Families of addresses.
const familyIB = 27

// parseAddress reads a sockaddr of so many bytes. Those of InfiniBand are the zero value.
func parseAddress(b []byte, size uint16) (a netip.AddrPort, errno unix.Errno) {
	port := be.Uint16(b[2:])
	switch family := le.Uint16(b); {
	case family == unix.AF_INET && size == 16:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port), 0
	case family == unix.AF_INET6 && size == 28:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), port), 0
	case family == familyIB && size == 48:
		return netip.AddrPort{}, 0
	}
	return a, unix.EINVAL // ucma.c, ucma_bind: rdma_addr_size_kss
}

// putAddress writes a sockaddr and returns its size.
func putAddress(b []byte, a netip.AddrPort) uint16 {
	if !a.IsValid() {
		return 0
	}
	be.PutUint16(b[2:], a.Port())
	if a.Addr().Is4() {
		le.PutUint16(b, unix.AF_INET)
		copy(b[4:], a.Addr().AsSlice())
		return 16
	}
	le.PutUint16(b, unix.AF_INET6)
	copy(b[8:], a.Addr().AsSlice())
	return 28
}

// bind is ucma_bind.
func (f *file) bind(_ *frame.Message, b []byte, _ int) unix.Errno {
	a, errno := parseAddress(b[8:], le.Uint16(b[4:]))
	if errno != 0 || le.Uint16(b[6:]) != 0 {
		return unix.EINVAL // ucma.c, ucma_bind
	}
	i, errno := f.get(le.Uint32(b))
	switch {
	case errno != 0:
		return errno
	case i.state != idle:
		return unix.EINVAL // rdma_bind_addr
	case !a.IsValid() && i.space == spaceIB:
		return 0 // librdmacm asks whether there are such addresses
	case !a.IsValid():
		return unix.EINVAL // the model has no addresses of InfiniBand
	}
	if errno := f.host.bind(i, a); errno != 0 {
		return errno
	}
	i.state = bound
	return 0
}

// listen is ucma_listen.
func (f *file) listen(_ *frame.Message, b []byte, _ int) unix.Errno {
	const most = 1024 // net.rdma_ucm.max_backlog
	i, errno := f.get(le.Uint32(b))
	if errno != 0 {
		return errno
	}
	if i.state == idle { // rdma_listen binds to any address
		if errno := f.host.bind(i, netip.AddrPortFrom(netip.IPv4Unspecified(), 0)); errno != 0 {
			return errno
		}
		i.state = bound
	}
	if i.state != bound {
		return unix.EINVAL // cma.c, rdma_listen
	}
	if i.reuse { // rdma_listen: it has its address for itself now
		i.reuse = false
		if errno := f.host.conflict(i, i.local); errno != 0 {
			i.reuse = true
			return errno
		}
	}
	i.state = listening
	if i.backlog = int(int32(le.Uint32(b[4:]))); i.backlog <= 0 || i.backlog > most {
		i.backlog = most
	}
	return 0
}

// resolveAddr is ucma_resolve_addr. It finds the destination: who has the address has a device.
func (f *file) resolveAddr(_ *frame.Message, b []byte, _ int) unix.Errno {
	to, errno := parseAddress(b[144:], le.Uint16(b[10:]))
	if errno != 0 || !to.IsValid() {
		return unix.EINVAL // ucma.c, ucma_resolve_addr
	}
	i, errno := f.get(le.Uint32(b))
	if errno != 0 {
		return errno
	}
	if i.state > bound {
		return unix.EINVAL // cma.c, resolve_prepare_src
	}
	if size := le.Uint16(b[8:]); size != 0 && i.state == idle {
		from, errno := parseAddress(b[16:], size)
		if errno != 0 || !from.IsValid() {
			return unix.EINVAL // ucma.c, ucma_resolve_addr
		}
		if errno := f.host.bind(i, from); errno != 0 {
			return errno
		}
	}
	source, here := f.host.port.source(to.Addr())
	if !here {
		i.report(event{kind: eventAddrError, status: -int32(unix.ENODEV)}) // cma.c, addr_handler
		return 0
	}
	if !i.local.IsValid() {
		if errno := f.host.bind(i, netip.AddrPortFrom(source.IP, 0)); errno != 0 {
			return errno
		}
	}
	if host, _ := f.host.network.find(to.Addr()); host == nil && !to.Addr().IsMulticast() {
		i.report(event{kind: eventAddrError, status: -int32(unix.EHOSTUNREACH)}) // cma.c, addr_handler
		return 0
	}
	if i.local.Addr().IsUnspecified() {
		i.local = netip.AddrPortFrom(source.IP, i.local.Port())
	}
	if i.local.Addr().Unmap().Is4() != to.Addr().Unmap().Is4() {
		return unix.EINVAL // cma.c, resolve_prepare_src
	}
	i.state, i.remote, i.onDevice = resolved, to, true
	i.report(event{kind: eventAddrResolved})
	return 0
}

// resolveRoute is ucma_resolve_route.
func (f *file) resolveRoute(_ *frame.Message, b []byte, _ int) unix.Errno {
	i, errno := f.get(le.Uint32(b))
	switch {
	case errno != 0:
		return errno
	case i.state != resolved:
		return unix.EINVAL // cma.c, rdma_resolve_route
	}
	i.state = routed
	i.report(event{kind: eventRouteResolved})
	return 0
}

// setOption is ucma_set_option, with ucma_set_option_level and ucma_set_option_id.
func (f *file) setOption(m *frame.Message, b []byte, _ int) unix.Errno {
	const (
		levelID, levelIB                       = 0, 1
		typeOfService, reuse, only, ackTimeout = 0, 1, 2, 3
	)
	i, errno := f.get(le.Uint32(b[8:]))
	if errno != 0 {
		return errno
	}
	level, name, size := le.Uint32(b[12:]), le.Uint32(b[16:]), le.Uint32(b[20:])
	if level == levelIB {
		return 0 // a path, for which there is no choice
	}
	sizes := map[uint32]uint32{typeOfService: 1, reuse: 4, only: 4, ackTimeout: 1}
	want, ok := sizes[name]
	switch {
	case level != levelID || !ok:
		return unix.ENOSYS // ucma.c, ucma_set_option_level; ucma.c, ucma_set_option_id
	case size != want:
		return unix.EINVAL // ucma.c, ucma_set_option_id
	}
	v := make([]byte, 4)
	if m.Process().Read(le.Uint64(b), v[:size]) != nil {
		return unix.EFAULT // ucma.c, ucma_set_option
	}
	set := le.Uint32(v) != 0
	switch name {
	case reuse:
		if i.state == listening || i.state != idle && !set {
			return unix.EINVAL // cma.c, rdma_set_reuseaddr
		}
		i.reuse = set
	case only:
		if i.state > bound {
			return unix.EINVAL // cma.c, rdma_set_afonly
		}
		i.only = set
	case ackTimeout:
		if i.kind != typeRC {
			return unix.EINVAL // cma.c, rdma_set_ack_timeout
		}
		i.timeout = v[0]
	}
	return 0
}
