//go:build amd64 || arm64

package fabric

import (
	"fmt"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/cm"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// A Link is the kind of a port.
type Link byte

// The kinds of ports, as QUERY_PORT calls them.
const (
	InfiniBand Link = 1
	Ethernet   Link = 2
)

// A Kind makes devices that are all alike.
type Kind interface {
	NewDevice(*Fabric) Device
}

// A Device is one with a port on a fabric.
type Device interface {
	// Host returns a machine that has the device as uverbs0.
	Host() *frame.Host
	// The others are those of its port.
	Fabric() *Fabric
	SetLink(up bool)
	Remove()
}

// Hardware is what is behind a port. It is called with the lock of the fabric.
type Hardware interface {
	// Look looks at what programs have written for the device, and says whether
	// there was something.
	Look(now time.Time) bool
	// Event tells all programs that have the device open of an asynchronous event.
	Event(kind uint32, element uint64)
	// Ended ends the completion channels of these programs, and what registers show them: the device
	// was removed.
	Ended()
}

// A Config says what a port is.
type Config struct {
	Link Link // InfiniBand if it is 0
	// NoAtomics has no atomic operations carried out.
	NoAtomics bool
	// Vendor is what its numbers begin with.
	Vendor [3]byte
}

// A Port is that of a device.
type Port struct {
	Config
	LID     uint16
	GUID    uint64
	MAC     [6]byte
	GIDs    []GID
	Regions map[uint32]*Region // by their keys
	Windows map[uint32]*Window // by the upper 24 bits of their keys
	QPs     map[uint32]*QP     // by their numbers
	Removed bool               // with its device

	fabric   *Fabric
	hardware Hardware
	number   uint32 // of the object made last
	down     bool   // the link
	manager  *cm.Host
}

// Properties of all ports.
const (
	maxMessage   = 1 << 30
	mtu          = 4096
	MTUCode      = 5 // of 4096 bytes
	portDown     = 1
	portActive   = 4
	physDisabled = 3
	physLinkUp   = 5
	speedEDR     = 32
	width4X      = 2
)

// NewPort adds a port to the fabric. of is told the port and returns its hardware, before
// anybody looks at it.
func (f *Fabric) NewPort(config Config, of func(*Port) Hardware) *Port {
	f.mu.Lock()
	defer f.mu.Unlock()
	if config.Link == 0 {
		config.Link = InfiniBand
	}
	n := len(f.ports)
	v := config.Vendor
	p := &Port{Config: config, fabric: f, Regions: map[uint32]*Region{}, Windows: map[uint32]*Window{}, QPs: map[uint32]*QP{},
		// Numbers of different devices differ, so that one taken for the other is noticed.
		number: 0x100 + uint32(n)<<16,
		MAC:    [6]byte{v[0], v[1], v[2], 0xc0, 0, byte(n)}}
	// The GUID is the modified EUI-64 of the MAC.
	m := p.MAC
	p.GUID = be.Uint64([]byte{m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]})
	if config.Link == InfiniBand {
		p.LID = uint16(7 + n)
		p.GUID = be.Uint64([]byte{v[0], v[1], v[2], 3, 0, 0xc0, byte(n), 0})
	}
	p.manager = f.network.NewHost(cm.Port{Addresses: p.makeGIDs(n), Ethernet: config.Link == Ethernet, GUID: p.GUID,
		LID: p.LID, MTU: MTUCode})
	p.hardware = of(p)
	f.ports = append(f.ports, p)
	return p
}

// Host returns a machine that has the port's device, with that name and node, as uverbs0. What
// sysfs says of the kind of device is missing.
func (p *Port) Host(name string, node frame.Node) *frame.Host {
	const miscMajor, managerMinor = 10, 58
	node.Major, node.Minor = 231, 192
	guid := fmt.Sprintf("%04x:%04x:%04x:%04x", p.GUID>>48, p.GUID>>32&0xffff, p.GUID>>16&0xffff, p.GUID&0xffff)
	verbs, device, port := "infiniband_verbs/", "infiniband/"+name+"/", "infiniband/"+name+"/ports/1/"
	link := map[Link]string{InfiniBand: "InfiniBand", Ethernet: "Ethernet"}[p.Link]
	files := map[string]string{
		verbs + "abi_version":      "6",
		verbs + "uverbs0/ibdev":    name,
		verbs + "uverbs0/dev":      fmt.Sprintf("%d:%d", node.Major, node.Minor),
		device + "node_type":       "1: CA",
		device + "node_guid":       guid,
		device + "sys_image_guid":  guid,
		device + "node_desc":       "model",
		port + "state":             "4: ACTIVE",
		port + "phys_state":        "5: LinkUp",
		port + "rate":              "100 Gb/sec (4X EDR)",
		port + "lid":               fmt.Sprintf("%#x", p.LID),
		port + "link_layer":        link,
		port + "pkeys/0":           "0xffff",
		"misc/rdma_cm/abi_version": "4",
		"misc/rdma_cm/dev":         fmt.Sprintf("%d:%d", miscMajor, managerMinor),
	}
	for i := range p.gidTable() {
		g := GID{}
		if i < len(p.GIDs) {
			g = p.GIDs[i]
			files[fmt.Sprintf(port+"gid_attrs/types/%d", i)] = g.Kind.String()
			if p.Link == Ethernet {
				files[fmt.Sprintf(port+"gid_attrs/ndevs/%d", i)] = netdev
			}
		}
		files[fmt.Sprintf(port+"gids/%d", i)] = g.String()
	}
	return &frame.Host{
		Nodes: map[string]frame.Node{"/dev/infiniband/uverbs0": node,
			"/dev/infiniband/rdma_cm": {Major: miscMajor, Minor: managerMinor, OpenMessages: p.manager.Open}},
		Sysfs: files,
	}
}

// Query is struct ib_uverbs_query_port_resp.
func (p *Port) Query() []byte {
	b := make([]byte, 40)
	le.PutUint32(b[4:], maxMessage)
	le.PutUint32(b[16:], uint32(p.gidTable()))
	le.PutUint16(b[20:], 1)     // P_Keys
	le.PutUint16(b[22:], p.LID) // 0 for Ethernet
	b[26], b[27], b[28] = portActive, MTUCode, MTUCode
	b[30] = 4 // virtual lanes
	b[34], b[35], b[36], b[37] = width4X, speedEDR, physLinkUp, byte(p.Link)
	if p.down {
		b[26], b[36] = portDown, physDisabled
	}
	if p.Link == Ethernet {
		b[38] = 1 // IB_UVERBS_QPF_GRH_REQUIRED
	}
	return b
}

// Fabric is what connects the port with others.
func (p *Port) Fabric() *Fabric { return p.fabric }

// Next returns a number that the port's device has not used.
func (p *Port) Next() uint32 {
	p.number = (p.number + 1) & 0xffffff
	return p.number
}

// SetLink takes the port's link away or gives it back. Requests to others wait as if
// packets were lost.
func (p *Port) SetLink(up bool) {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	if p.down == !up {
		return
	}
	p.down = !up
	kind := uint32(EventPortError)
	if up {
		kind = EventPortActive
	}
	p.hardware.Event(kind, 1)
}

// Remove takes the device away from programs that have it open: commands fail, but for those that
// destroy an object, nothing is executed any more, and completion channels end
// (core/uverbs_main.c, ib_uverbs_remove_one; a program reads the end of the channel and not EIO).
func (p *Port) Remove() {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	if p.Removed {
		return
	}
	p.Removed = true
	p.manager.Remove()
	p.hardware.Event(EventDeviceFatal, 0)
	p.hardware.Ended()
	clear(p.QPs)
	clear(p.Regions)
	clear(p.Windows)
}
