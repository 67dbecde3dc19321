package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs"
)

// report is all that is known, and what -json prints. Sizes are in bytes.
type report struct {
	Devices   []device  `json:"devices"`
	Limits    limits    `json:"limits"`
	Problems  []string  `json:"problems"` // what could not be read
	Addresses []address `json:"addresses,omitempty"`
}

// device is an RDMA device, or the software HCA.
type device struct {
	Name      string `json:"name"`
	Provider  string `json:"provider"`
	Driver    string `json:"driver,omitempty"`
	Transport string `json:"transport"`
	Node      string `json:"node,omitempty"`
	NodeGUID  string `json:"nodeGUID,omitempty"`
	Firmware  string `json:"firmware,omitempty"`
	Usable    bool   `json:"usable"`           // ramjet can drive it, and may open it
	Reason    string `json:"reason,omitempty"` // why not
	Caps      *caps  `json:"limits,omitempty"` // known if usable
	Ports     []port `json:"ports"`
}

// caps are the limits and abilities of a device.
type caps struct {
	Abilities  []string `json:"abilities"`
	MaxQP      int      `json:"maxQP"`
	MaxQPWR    int      `json:"maxQPWR"`
	MaxSGE     int      `json:"maxSGE"`
	MaxInline  int      `json:"maxInline"`
	MaxCQ      int      `json:"maxCQ"`
	MaxCQE     int      `json:"maxCQE"`
	MaxMR      int      `json:"maxMR"`
	MaxMRSize  uint64   `json:"maxMRSize"`
	MaxPD      int      `json:"maxPD"`
	MaxSRQ     int      `json:"maxSRQ"`
	MaxMW      int      `json:"maxMW"`
	MaxAH      int      `json:"maxAH"`
	ReadDepth  int      `json:"readDepth"` // READs and atomics under way as initiator
	CompVector int      `json:"compVectors"`
}

type port struct {
	Port      uint8          `json:"port"`
	State     string         `json:"state"`
	PhysState string         `json:"physState,omitempty"`
	LinkLayer string         `json:"linkLayer,omitempty"`
	Rate      string         `json:"rate,omitempty"`
	ActiveMTU int            `json:"activeMTU,omitempty"`
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

// limits are those of this process; another program may have others.
type limits struct {
	Memlock        memlock  `json:"memlock"`
	OpenFiles      limit    `json:"openFiles"`
	Cgroups        []cgroup `json:"cgroups"`
	Nodes          []node   `json:"nodes"`
	MissingModules []string `json:"missingModules"`
}

type memlock struct {
	Soft   limit  `json:"soft"`
	Hard   limit  `json:"hard"`
	Pinned uint64 `json:"pinned"`
	Exempt bool   `json:"exempt"` // CAP_IPC_LOCK: only siw looks at the limit
}

type cgroup struct {
	Group   string `json:"group"`
	Device  string `json:"device"`
	Handles quota  `json:"hcaHandle"`
	Objects quota  `json:"hcaObject"`
}

type quota struct {
	Max     limit  `json:"max"`
	Current uint64 `json:"current"`
}

type node struct {
	Path  string `json:"path"`
	Mode  string `json:"mode,omitempty"`
	Owner string `json:"owner,omitempty"`
	Group string `json:"group,omitempty"`
	Error string `json:"error,omitempty"` // why this process may not open it
}

// limit is a number, or uverbs.NoLimit, which is null in JSON.
type limit uint64

// MarshalJSON writes null for what is not limited.
func (l limit) MarshalJSON() ([]byte, error) {
	if uint64(l) == uverbs.NoLimit {
		return []byte("null"), nil
	}
	return json.Marshal(uint64(l))
}

// collect looks at everything.
func collect() report {
	r := report{Devices: []device{}, Problems: []string{}}
	l, err := uverbs.ReadLimits()
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		r.Problems = append(r.Problems, err.Error())
	}
	r.Limits = limitsOf(&l)
	kernel, err := uverbs.Describe()
	if err != nil {
		r.Problems = append(r.Problems, err.Error())
	}
	for i := range kernel {
		r.Devices = append(r.Devices, kernelDevice(&kernel[i]))
	}
	others, err := verbs.Devices()
	if err != nil {
		r.Problems = append(r.Problems, err.Error())
	}
	for _, info := range others {
		if info.Provider != uverbs.ProviderName {
			d := describe(info)
			d.open()
			r.Devices = append(r.Devices, d)
		}
	}
	return r
}

func describe(info verbs.DeviceInfo) device {
	d := device{Name: info.Name, Provider: info.Provider, Driver: info.Driver, Transport: info.Transport.String(), Ports: []port{}}
	if g := info.NodeGUID; g != 0 {
		d.NodeGUID = fmt.Sprintf("%04x:%04x:%04x:%04x", g>>48, g>>32&0xffff, g>>16&0xffff, g&0xffff)
	}
	return d
}

func kernelDevice(k *uverbs.Description) device {
	d := describe(k.DeviceInfo)
	d.Node, d.Firmware = k.Node, k.Firmware
	for _, p := range k.Ports {
		d.Ports = append(d.Ports, port{
			Port: p.Port, State: p.State, PhysState: p.PhysState, LinkLayer: p.LinkLayer, Rate: p.Rate, Netdev: p.Netdev,
			GIDs: gidsOf(p.GIDs),
		})
	}
	for i := range d.Ports {
		d.Ports[i].count(d.Name)
	}
	d.open()
	return d
}

// open opens the device, which shows whether it can be used, and asks it.
func (d *device) open() {
	ctx, err := verbs.Open(d.Name)
	if err != nil {
		d.Reason = err.Error()
		if text := uverbs.Explain(uverbs.Failure{Op: "open", Device: d.Name, Err: err}); text != "" {
			d.Reason += ": " + text
		}
		return
	}
	defer ctx.Close()
	d.Usable = true
	a := ctx.Attr()
	if d.Firmware == "" {
		d.Firmware = a.FirmwareVersion
	}
	d.Caps = &caps{
		Abilities: abilities(a.Caps), MaxQP: a.MaxQP, MaxQPWR: a.MaxQPWR, MaxSGE: a.MaxSGE, MaxInline: a.MaxInline,
		MaxCQ: a.MaxCQ, MaxCQE: a.MaxCQE, MaxMR: a.MaxMR, MaxMRSize: a.MaxMRSize, MaxPD: a.MaxPD, MaxSRQ: a.MaxSRQ,
		MaxMW: a.MaxMW, MaxAH: a.MaxAH, ReadDepth: a.MaxQPRdAtomic, CompVector: max(1, a.CompVectors),
	}
	if len(d.Ports) == 0 {
		for n := 1; n <= a.PhysPorts; n++ {
			d.Ports = append(d.Ports, port{Port: uint8(n), GIDs: []gid{}})
		}
	}
	for i := range d.Ports {
		d.Ports[i].ask(ctx)
	}
}

// ask completes a port by what the open device says of it.
func (p *port) ask(ctx *verbs.Context) {
	attr, err := ctx.QueryPort(p.Port)
	if err != nil {
		return // the kernel's own words stay
	}
	p.ActiveMTU = attr.ActiveMTU.Bytes()
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
	c, err := uverbs.ReadCounters(device, p.Port)
	if err != nil {
		return // removed since
	}
	t := c.Traffic
	p.Traffic = &traffic{
		RxBytes: t.RxBytes, TxBytes: t.TxBytes, BytesFrom: t.BytesFrom,
		RxPackets: t.RxPackets, TxPackets: t.TxPackets, PacketsFrom: t.PacketsFrom,
	}
	for _, list := range [][]uverbs.Counter{c.Standard, c.Driver} {
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
		{verbs.CapInlineIsTransfer, "inline-is-transfer"},
	} {
		if c.Has(a.bit) {
			list = append(list, a.name)
		}
	}
	return list
}

func limitsOf(l *uverbs.Limits) limits {
	r := limits{
		Memlock:   memlock{limit(l.Memlock.Soft), limit(l.Memlock.Hard), l.Memlock.Pinned, l.Memlock.Exempt},
		OpenFiles: limit(l.OpenFiles), Cgroups: []cgroup{}, Nodes: []node{},
		MissingModules: append([]string{}, l.MissingModules...),
	}
	for _, c := range l.Cgroups {
		r.Cgroups = append(r.Cgroups, cgroup{
			Group: c.Group, Device: c.Device,
			Handles: quota{limit(c.Handles.Max), c.Handles.Current}, Objects: quota{limit(c.Objects.Max), c.Objects.Current},
		})
	}
	for _, n := range l.Nodes {
		entry := node{Path: n.Path, Owner: n.Owner, Group: n.Group}
		if n.Owner != "" {
			entry.Mode = fmt.Sprintf("%#o", n.Mode.Perm())
		}
		if n.Err != nil {
			entry.Error = n.Err.Error()
		}
		r.Nodes = append(r.Nodes, entry)
	}
	return r
}

// seconds rounds for people.
func seconds(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
