package main

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

// device is an RDMA device, or the software HCA.
type device struct {
	Name      string `json:"name"`
	Provider  string `json:"provider"`
	Driver    string `json:"driver,omitempty"`
	Transport string `json:"transport"`
	Node      string `json:"node,omitempty"`
	NodeType  string `json:"nodeType,omitempty"` // "CA", or "RNIC" if it speaks iWARP
	NodeGUID  string `json:"nodeGUID,omitempty"`
	ImageGUID string `json:"systemImageGUID,omitempty"` // common to the devices of an adapter
	Firmware  string `json:"firmware,omitempty"`
	Model     string `json:"model,omitempty"` // the maker's words
	Board     string `json:"board,omitempty"`
	Revision  string `json:"revision,omitempty"`
	Usable    bool   `json:"usable"`             // ramjet can drive it, and may open it
	Reason    string `json:"reason,omitempty"`   // why not
	Maker     *maker `json:"hardware,omitempty"` // known if usable
	Caps      *caps  `json:"limits,omitempty"`   // known if usable
	Ports     []port `json:"ports"`
}

// maker is who made a device, in numbers.
type maker struct {
	Vendor  uint32 `json:"vendorID"`
	Part    uint32 `json:"vendorPartID"`
	Version uint32 `json:"version"`
}

// String writes the numbers as ibv_devinfo does.
func (m *maker) String() string {
	if m == nil {
		return ""
	}
	return fmt.Sprintf("vendor %#04x, part %d, hardware version %#x", m.Vendor, m.Part, m.Version)
}

// caps are the limits and abilities of a device.
type caps struct {
	Abilities  []string `json:"abilities"`
	KernelCaps uint64   `json:"kernelCaps"` // device_cap_flags and device_cap_flags_ex
	MaxQP      int      `json:"maxQP"`
	MaxQPWR    int      `json:"maxQPWR"`
	MaxSGE     int      `json:"maxSGE"`
	MaxSGERead int      `json:"maxSGERead"`
	MaxInline  int      `json:"maxInline"`
	MaxCQ      int      `json:"maxCQ"`
	MaxCQE     int      `json:"maxCQE"`
	MaxMR      int      `json:"maxMR"`
	MaxMRSize  uint64   `json:"maxMRSize"`
	MaxPD      int      `json:"maxPD"`
	MaxSRQ     int      `json:"maxSRQ"`
	MaxSRQWR   int      `json:"maxSRQWR"`
	MaxSRQSGE  int      `json:"maxSRQSGE"`
	MaxMW      int      `json:"maxMW"`
	MaxAH      int      `json:"maxAH"`
	ReadDepth  int      `json:"readDepth"`   // READs and atomics under way as initiator
	ReadsIn    int      `json:"readDepthIn"` // as responder
	AckDelay   uint8    `json:"ackDelay"`    // the code of the device's own delay before an ACK
	CompVector int      `json:"compVectors"`
	OnDemand   []paging `json:"onDemandPaging,omitempty"` // of the services that have it
}

// paging is for which operations of a service memory need not be pinned.
type paging struct {
	Service    string   `json:"service"`
	Operations []string `json:"operations"`
}

// port is a port of a device. The kernel tells its state and its place in the
// subnet to anybody; the rest takes a device that can be opened.
type port struct {
	Port      uint8          `json:"port"`
	State     string         `json:"state"`
	PhysState string         `json:"physState,omitempty"`
	LinkLayer string         `json:"linkLayer,omitempty"`
	Rate      string         `json:"rate,omitempty"`
	LID       uint32         `json:"lid"` // 0 without a subnet manager, and on Ethernet
	SMLID     uint32         `json:"smLID"`
	LMC       uint8          `json:"lmc"`
	PortCaps  uint32         `json:"capabilityMask"`
	ActiveMTU int            `json:"activeMTU,omitempty"`
	MaxMTU    int            `json:"maxMTU,omitempty"`
	MaxMsg    uint32         `json:"maxMessage,omitempty"`
	GIDTable  int            `json:"gidTable,omitempty"`
	PKeyTable uint16         `json:"pkeyTable,omitempty"`
	Netdev    string         `json:"netdev,omitempty"`
	GIDs      []gid          `json:"gids"`
	Traffic   *traffic       `json:"traffic,omitempty"`
	Counters  []namedCounter `json:"counters,omitempty"`
}

type gid struct {
	Index  int    `json:"index"`
	GID    string `json:"gid"`
	Type   string `json:"type"`
	Netdev string `json:"netdev,omitempty"`
}

// traffic is what a port has carried since it is there. From says who counted:
// the network interface counts what is not RDMA too.
type traffic struct {
	RxBytes     uint64 `json:"rxBytes"`
	TxBytes     uint64 `json:"txBytes"`
	BytesFrom   string `json:"bytesFrom"`
	RxPackets   uint64 `json:"rxPackets"`
	TxPackets   uint64 `json:"txPackets"`
	PacketsFrom string `json:"packetsFrom"`
}

type namedCounter struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

func describe(info verbs.DeviceInfo) device {
	d := device{Name: info.Name, Provider: info.Provider, Driver: info.Driver, Transport: info.Transport.String(), Ports: []port{}}
	d.NodeGUID = guid(info.NodeGUID)
	return d
}

// guid writes a GUID as the kernel does, and nothing for one that is unknown.
func guid(g uint64) string {
	if g == 0 {
		return ""
	}
	return fmt.Sprintf("%04x:%04x:%04x:%04x", g>>48, g>>32&0xffff, g>>16&0xffff, g&0xffff)
}

// kernelDevice also returns what closes the device.
func kernelDevice(k *rdmahost.Description, pool *verbs.Pool) (d device, closes func()) {
	d = describe(k.DeviceInfo)
	d.Node, d.NodeType, d.ImageGUID = k.Node, k.NodeType, guid(k.SystemImageGUID)
	d.Firmware, d.Model, d.Board, d.Revision = k.Firmware, k.Model, k.Board, k.Revision
	for _, p := range k.Ports {
		d.Ports = append(d.Ports, port{
			Port: p.Port, State: p.State, PhysState: p.PhysState, LinkLayer: p.LinkLayer, Rate: p.Rate, Netdev: p.Netdev,
			LID: p.LID, SMLID: p.SMLID, LMC: p.LMC, PortCaps: p.Capabilities, GIDs: gidsOf(p.GIDs),
		})
	}
	for i := range d.Ports {
		d.Ports[i].count(d.Name)
	}
	closes = d.open(pool)
	return d, closes
}

// open opens the device, which shows whether it can be used, and asks it. It
// returns what closes it.
func (d *device) open(pool *verbs.Pool) (closes func()) {
	ctx, err := pool.Open(d.Name)
	if err != nil {
		d.Reason = err.Error()
		if text := rdmahost.Explain(rdmahost.Failure{Op: "open", Device: d.Name, Err: err}); text != "" {
			d.Reason += ": " + text
		}
		return func() {}
	}
	d.Usable = true
	a := ctx.Attr()
	if d.Firmware == "" {
		d.Firmware = a.FirmwareVersion
	}
	if d.NodeGUID == "" {
		d.NodeGUID = guid(a.NodeGUID)
	}
	if d.ImageGUID == "" {
		d.ImageGUID = guid(a.SystemImageGUID)
	}
	if a.VendorID != 0 { // the software HCA has no maker
		d.Maker = &maker{a.VendorID, a.VendorPartID, a.HardwareVersion}
	}
	d.Caps = &caps{
		Abilities: abilities(a.Caps), KernelCaps: a.KernelCaps,
		MaxQP: a.MaxQP, MaxQPWR: a.MaxQPWR, MaxSGE: a.MaxSGE, MaxSGERead: a.MaxSGERead, MaxInline: a.MaxInline,
		MaxCQ: a.MaxCQ, MaxCQE: a.MaxCQE, MaxMR: a.MaxMR, MaxMRSize: a.MaxMRSize, MaxPD: a.MaxPD,
		MaxSRQ: a.MaxSRQ, MaxSRQWR: a.MaxSRQWR, MaxSRQSGE: a.MaxSRQSGE, MaxMW: a.MaxMW, MaxAH: a.MaxAH,
		ReadDepth: a.MaxQPInitRdAtomic, ReadsIn: a.MaxQPRdAtomic, AckDelay: a.AckDelay, CompVector: max(1, a.CompVectors),
		OnDemand: onDemand(&a.ODP),
	}
	if len(d.Ports) == 0 {
		for n := 1; n <= a.PhysPorts; n++ {
			d.Ports = append(d.Ports, port{Port: uint8(n), GIDs: []gid{}})
		}
	}
	for i := range d.Ports {
		d.Ports[i].ask(ctx)
	}
	return func() { _ = ctx.Close() } // nothing is left in it
}

// ask completes a port by what the open device says of it.
func (p *port) ask(ctx *verbs.Context) {
	attr, err := ctx.QueryPort(p.Port)
	if err != nil {
		return // the kernel's own words stay
	}
	p.ActiveMTU, p.MaxMTU, p.MaxMsg = attr.ActiveMTU.Bytes(), attr.MaxMTU.Bytes(), attr.MaxMsgSize
	p.GIDTable, p.PKeyTable = attr.GIDTableLen, attr.PKeyTblLen
	if p.LID == 0 && p.SMLID == 0 { // sysfs was silent, or has nothing else to say
		p.LID, p.SMLID, p.LMC = uint32(attr.LID), uint32(attr.SMLID), attr.LMC
	}
	if p.State == "" {
		p.State = stateName(attr.State)
	}
	if table, err := ctx.QueryGIDs(p.Port); err == nil {
		p.GIDs = gidsOf(table)
	}
}

func stateName(s verbs.PortState) string {
	names := []string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("STATE(%d)", s)
}

func gidsOf(table []verbs.GIDEntry) []gid {
	list := make([]gid, len(table))
	for i, e := range table {
		list[i] = gid{Index: e.Index, GID: e.GID.String(), Type: gidTypeName(e.Type), Netdev: e.Netdev}
	}
	return list
}

func gidTypeName(t verbs.GIDType) string {
	switch t {
	case verbs.GIDTypeIB:
		return "IB"
	case verbs.GIDTypeRoCEv1:
		return "RoCE v1"
	case verbs.GIDTypeRoCEv2:
		return "RoCE v2"
	case verbs.GIDTypeSoft:
		return "soft"
	}
	return fmt.Sprintf("type %d", t)
}

// count reads the counters of a port of the kernel.
func (p *port) count(device string) {
	c, err := rdmahost.ReadCounters(device, p.Port)
	if err != nil {
		return // removed since
	}
	t := c.Traffic
	p.Traffic = &traffic{
		RxBytes: t.RxBytes, TxBytes: t.TxBytes, BytesFrom: t.BytesFrom,
		RxPackets: t.RxPackets, TxPackets: t.TxPackets, PacketsFrom: t.PacketsFrom,
	}
	for _, list := range [][]rdmahost.Counter{c.Standard, c.Driver} {
		for _, n := range list {
			p.Counters = append(p.Counters, namedCounter{n.Name, n.Value})
		}
	}
}

// abilities names the bits of caps.
func abilities(c verbs.Cap) []string {
	list := []string{}
	for _, a := range []struct {
		bit  verbs.Cap
		name string
	}{
		{verbs.CapWriteWithImm, "write-with-imm"}, {verbs.CapSendWithImm, "send-with-imm"}, {verbs.CapSendWithInv, "send-with-inv"},
		{verbs.CapRead, "read"}, {verbs.CapAtomics, "atomics"}, {verbs.CapSRQ, "srq"}, {verbs.CapRegisterSlice, "register-slice"},
		{verbs.CapThreadWait, "thread-wait"}, {verbs.CapMemWindow, "memory-windows"}, {verbs.CapOnDemandPaging, "on-demand-paging"},
		{verbs.CapResizeCQ, "resize-cq"}, {verbs.CapUC, "uc"}, {verbs.CapUD, "ud"}, {verbs.CapAtomicWrite, "atomic-write"},
		{verbs.CapFlush, "flush"}, {verbs.CapReregister, "reregister"}, {verbs.CapDMABuf, "dma-buf"},
		{verbs.CapMulticast, "multicast"}, {verbs.CapModerateCQ, "moderate-cq"}, {verbs.CapTimestamps, "timestamps"},
		{verbs.CapWallTime, "wall-time"}, {verbs.CapClock, "clock"}, {verbs.CapIOVA, "iova"}, {verbs.CapNullMR, "null-mr"},
		{verbs.CapAdviseMR, "advise-mr"}, {verbs.CapInlineIsTransfer, "inline-is-transfer"}, {verbs.CapXRC, "xrc"},
		{verbs.CapDeviceMemory, "device-memory"}, {verbs.CapRegisterAll, "register-all"}, {verbs.CapBlueFlame, "blueflame"},
	} {
		if c.Has(a.bit) {
			list = append(list, a.name)
		}
	}
	return list
}

// onDemand lists the services that have on-demand paging, and names the bits of each.
func onDemand(o *verbs.ODPCaps) []paging {
	var list []paging
	for _, service := range []struct {
		name string
		ops  verbs.ODPOps
	}{{"RC", o.RC}, {"UC", o.UC}, {"UD", o.UD}, {"XRC", o.XRC}} {
		if ops := operations(service.ops); len(ops) > 0 {
			list = append(list, paging{service.name, ops})
		}
	}
	return list
}

func operations(o verbs.ODPOps) []string {
	var list []string
	for _, a := range []struct {
		bit  verbs.ODPOps
		name string
	}{
		{verbs.ODPSend, "send"}, {verbs.ODPRecv, "recv"}, {verbs.ODPWrite, "write"}, {verbs.ODPRead, "read"}, {verbs.ODPAtomic, "atomics"},
		{verbs.ODPSRQRecv, "srq-recv"}, {verbs.ODPFlush, "flush"}, {verbs.ODPAtomicWrite, "atomic-write"},
	} {
		if o.Has(a.bit) {
			list = append(list, a.name)
		}
	}
	return list
}
