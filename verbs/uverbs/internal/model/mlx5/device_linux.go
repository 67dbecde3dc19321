//go:build amd64 || arm64

package mlx5

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/cm"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// A Link is the kind of a device's port.
type Link byte

// The kinds of ports, as QUERY_PORT calls them.
const (
	InfiniBand Link = 1
	Ethernet   Link = 2
)

// A Config says what a device is.
type Config struct {
	Link Link // InfiniBand if it is 0
	// StaticUARs makes the kernel one that knows no other UARs than those of a context, as
	// before 5.7.
	StaticUARs bool
	// NoAtomics takes atomic operations away: QPs cannot let them in either.
	NoAtomics bool
	// CQEVersion0 makes it a device whose CQEs name no user indices, as the first ones that there were.
	CQEVersion0 bool
}

// A Device is a ConnectX with one port.
type Device struct {
	config   Config
	fabric   *Fabric
	lid      uint16
	guid     uint64
	mac      [6]byte
	gids     []gidEntry
	contexts []*ucontext
	keys     map[uint32]*memoryRegion
	windows  map[uint32]*window // by the upper 24 bits of their keys
	qps      map[uint32]*queuePair
	number   uint32 // of the object made last
	removed  bool
	down     bool // the link
	manager  *cm.Host
}

// NewDevice adds a device to the fabric.
func (f *Fabric) NewDevice(config Config) *Device {
	f.mu.Lock()
	defer f.mu.Unlock()
	if config.Link == 0 {
		config.Link = InfiniBand
	}
	n := len(f.devices)
	d := &Device{config: config, fabric: f, keys: map[uint32]*memoryRegion{}, windows: map[uint32]*window{}, qps: map[uint32]*queuePair{},
		// Numbers of different devices differ, so that one taken for the other is noticed.
		number: 0x100 + uint32(n)<<16,
		mac:    [6]byte{0x00, 0x02, 0xc9, 0xc0, 0, byte(n)}}
	// The GUID is the modified EUI-64 of the MAC.
	m := d.mac
	d.guid = be.Uint64([]byte{m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]})
	if config.Link == InfiniBand {
		d.lid = uint16(7 + n)
		d.guid = 0x0002c903_00c00000 + uint64(n)<<8
	}
	d.manager = f.network.NewHost(cm.Port{Addresses: d.makeGIDs(n), Ethernet: config.Link == Ethernet, GUID: d.guid,
		LID: d.lid, MTU: mtuCode})
	f.devices = append(f.devices, d)
	return d
}

// Host returns a machine that has the device as uverbs0.
func (d *Device) Host() *frame.Host {
	const major, minor, miscMajor, managerMinor = 231, 192, 10, 58
	guid := fmt.Sprintf("%04x:%04x:%04x:%04x", d.guid>>48, d.guid>>32&0xffff, d.guid>>16&0xffff, d.guid&0xffff)
	const verbs, device, port = "infiniband_verbs/", "infiniband/mlx5_0/", "infiniband/mlx5_0/ports/1/"
	link := map[Link]string{InfiniBand: "InfiniBand", Ethernet: "Ethernet"}[d.config.Link]
	files := map[string]string{
		verbs + "abi_version":         "6",
		verbs + "uverbs0/ibdev":       "mlx5_0",
		verbs + "uverbs0/abi_version": "1",
		verbs + "uverbs0/dev":         fmt.Sprintf("%d:%d", major, minor),
		device + "node_type":          "1: CA",
		device + "node_guid":          guid,
		device + "sys_image_guid":     guid,
		device + "node_desc":          "model",
		device + "hca_type":           "MT4119",
		device + "fw_ver":             "16.35.1000",
		device + "device/modalias":    "pci:v000015B3d00001017sv000015B3sd00000007bc02sc00i00",
		port + "state":                "4: ACTIVE",
		port + "phys_state":           "5: LinkUp",
		port + "rate":                 "100 Gb/sec (4X EDR)",
		port + "lid":                  fmt.Sprintf("%#x", d.lid),
		port + "link_layer":           link,
		port + "pkeys/0":              "0xffff",
		"misc/rdma_cm/abi_version":    "4",
		"misc/rdma_cm/dev":            fmt.Sprintf("%d:%d", miscMajor, managerMinor),
	}
	for i := range d.gidTable() {
		g := gidEntry{}
		if i < len(d.gids) {
			g = d.gids[i]
			files[fmt.Sprintf(port+"gid_attrs/types/%d", i)] = g.kind.String()
			if d.config.Link == Ethernet {
				files[fmt.Sprintf(port+"gid_attrs/ndevs/%d", i)] = netdev
			}
		}
		files[fmt.Sprintf(port+"gids/%d", i)] = g.String()
	}
	return &frame.Host{
		Nodes: map[string]frame.Node{"/dev/infiniband/uverbs0": {Major: major, Minor: minor, Pages: nodePages,
			Methods: attributesOf(methods), Open: d.open},
			"/dev/infiniband/rdma_cm": {Major: miscMajor, Minor: managerMinor, OpenMessages: d.manager.Open}},
		Sysfs: files,
		Links: map[string]string{device + "device/driver": "../../../../bus/pci/drivers/mlx5_core"},
	}
}

// Fabric is what connects the device with others.
func (d *Device) Fabric() *Fabric { return d.fabric }

// SetLink takes the port's link away or gives it back. Requests to others wait as if
// packets were lost.
func (d *Device) SetLink(up bool) {
	d.fabric.mu.Lock()
	defer d.fabric.mu.Unlock()
	if d.down == !up {
		return
	}
	d.down = !up
	kind := uint32(eventPortError)
	if up {
		kind = eventPortActive
	}
	for _, c := range d.contexts {
		c.event(kind, 1)
	}
}

// Remove takes the device away from programs that have it open: commands fail, nothing is
// executed any more, and completion channels end (core/uverbs_main.c, ib_uverbs_remove_one; a
// program reads the end of the channel and not EIO).
func (d *Device) Remove() {
	d.fabric.mu.Lock()
	defer d.fabric.mu.Unlock()
	if d.removed {
		return
	}
	d.removed = true
	d.manager.Remove()
	for _, c := range d.contexts {
		c.event(eventDeviceFatal, 0)
		for _, q := range c.cqs {
			if q.channel != nil {
				q.channel.End()
			}
		}
	}
	clear(d.qps)
	clear(d.keys)
	clear(d.windows)
}

// cqeVersion is that of CQEs with the user's indices, if the device has them.
func (d *Device) cqeVersion() byte {
	if d.config.CQEVersion0 {
		return 0
	}
	return 1
}

func (d *Device) state() byte {
	if d.down {
		return portDown
	}
	return portActive
}

func (d *Device) physicalState() byte {
	if d.down {
		return physDisabled
	}
	return physLinkUp
}
