// Package abilities finds out what a device can do, by its attributes and by
// trying, and makes the table of docs/verbs.md of that. What devices of a virtual
// machine and of models said is recorded; their tests compare it.
package abilities

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// Ability is one row of the table, for one device.
type Ability struct {
	Name  string `json:"name"`
	Value string `json:"value"` // "yes", "no", a number, a list
}

// Device is a column.
type Device struct {
	Name      string    `json:"name"` // "rxe, Linux 6.1"
	Abilities []Ability `json:"abilities"`
}

//go:embed devices.json
var recorded []byte

// Recorded returns the devices that are recorded.
func Recorded() ([]Device, error) {
	var list []Device
	err := json.Unmarshal(recorded, &list)
	return list, err
}

// Encode is how devices are recorded.
func Encode(list []Device) ([]byte, error) {
	b, err := json.MarshalIndent(list, "", "\t")
	return append(b, '\n'), err
}

// operations are the rows that a capability bit tells of.
var operations = []struct {
	name string
	need verbs.Cap
}{
	{"SEND_WITH_IMM", verbs.CapSendWithImm}, {"WRITE_WITH_IMM", verbs.CapWriteWithImm}, {"READ", verbs.CapRead},
	{"CMP_AND_SWP, FETCH_AND_ADD", verbs.CapAtomics}, {"ATOMIC_WRITE", verbs.CapAtomicWrite}, {"FLUSH", verbs.CapFlush},
	{"SEND_WITH_INV", verbs.CapSendWithInv}, {"BIND_MW, LOCAL_INV", verbs.CapMemWindow},
	{"MR of the caller's memory, remote access included", verbs.CapRegisterSlice}, {"MR of a DMA buffer", verbs.CapDMABuf},
	{"MR at an address of the caller's choice", verbs.CapIOVA}, {"MR without memory (null)", verbs.CapNullMR}, {"PD.AdviseMR", verbs.CapAdviseMR},
	{"inline data is placed while it is posted", verbs.CapInlineIsTransfer}, {"WaitThread is cheaper than Wait", verbs.CapThreadWait},
	{"BlueFlame", verbs.CapBlueFlame},
}

// Of tries what the device can do.
func Of(ctx *verbs.Context) ([]Ability, error) {
	p := prober{ctx: ctx, attr: ctx.Attr()}
	if err := p.prepare(); err != nil {
		return nil, err
	}
	defer p.close()
	p.services()
	for _, op := range operations {
		p.add(op.name, yes(p.attr.Caps.Has(op.need)))
	}
	p.memory()
	p.queues()
	p.limits()
	return p.list, nil
}

type prober struct {
	ctx  *verbs.Context
	attr verbs.DeviceAttr
	pd   *verbs.PD
	cq   *verbs.CQ
	list []Ability
}

func (p *prober) prepare() (err error) {
	if p.pd, err = p.ctx.AllocPD(); err != nil {
		return err
	}
	p.cq, err = p.ctx.CreateCQ(verbs.CQAttr{CQE: 16}, nil)
	return err
}

func (p *prober) close() {
	_ = p.cq.Close() // nothing uses them; the context closes them at the latest
	_ = p.pd.Close()
}

func (p *prober) add(name, value string) { p.list = append(p.list, Ability{name, value}) }

func yes(ok bool) string {
	if ok {
		return "yes"
	}
	return "no"
}

// try adds whether something can be made.
func (p *prober) try(name string, make func() (interface{ Close() error }, error)) {
	made, err := make()
	if err == nil {
		err = made.Close()
	}
	p.add(name, yes(err == nil))
}

func (p *prober) newQP(typ verbs.QPType, srq *verbs.SRQ) (*verbs.QP, error) {
	sizes := verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1}
	if srq == nil {
		sizes.MaxRecvWR, sizes.MaxRecvSGE = 4, 1
	}
	return p.pd.CreateQP(verbs.QPInitAttr{Type: typ, SendCQ: p.cq, RecvCQ: p.cq, SRQ: srq, Cap: sizes})
}

func (p *prober) services() {
	for _, service := range []struct {
		name string
		typ  verbs.QPType
	}{{"RC", verbs.QPTypeRC}, {"UC", verbs.QPTypeUC}, {"UD, address handles", verbs.QPTypeUD}} {
		p.try(service.name, func() (interface{ Close() error }, error) { return p.newQP(service.typ, nil) })
	}
	p.add("multicast", yes(p.attr.Caps.Has(verbs.CapMulticast)))
	p.xrc()
}

// xrc tries both ends, which belong together.
func (p *prober) xrc() {
	p.try("XRC", func() (interface{ Close() error }, error) {
		domain, err := p.ctx.OpenXRCDomain(nil)
		if err != nil {
			return nil, err
		}
		target, err := domain.CreateQP()
		if err == nil {
			err = target.Close()
		}
		if err = errors.Join(err, domain.Close()); err != nil {
			return nil, err
		}
		return p.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeXRCInitiator, SendCQ: p.cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1}})
	})
}

func (p *prober) memory() {
	for typ, name := range []string{1: "memory windows of type 1", 2: "memory windows of type 2"} {
		if typ != 0 {
			p.try(name, func() (interface{ Close() error }, error) { return p.pd.AllocMW(verbs.MWType(typ)) })
		}
	}
	p.try("MR.Reregister: rights", func() (interface{ Close() error }, error) {
		mr, err := p.pd.AllocMR(4096, verbs.AccessLocalWrite, verbs.MROptions{})
		if err == nil {
			if err = mr.Reregister(verbs.MRUpdate{}, verbs.MRChangeAccess); err != nil {
				_ = mr.Close() // it is the change that counts
			}
		}
		return mr, err
	})
	for _, c := range []struct {
		name   string
		access verbs.Access
	}{
		{"MR for FLUSH, global", verbs.AccessFlushGlobal},
		{"MR for FLUSH, persistent", verbs.AccessFlushPersistent},
		{"MR with on-demand paging", verbs.AccessOnDemand},
		{"MR with relaxed ordering", verbs.AccessRelaxedOrdering},
	} {
		p.try(c.name, func() (interface{ Close() error }, error) {
			return p.pd.AllocMR(4096, verbs.AccessLocalWrite|c.access, verbs.MROptions{})
		})
	}
	for _, service := range []struct {
		name       string
		operations verbs.ODPOps
	}{{"RC", p.attr.ODP.RC}, {"UC", p.attr.ODP.UC}, {"UD", p.attr.ODP.UD}, {"XRC", p.attr.ODP.XRC}} {
		p.add("on-demand paging of "+service.name, onDemand(service.operations))
	}
	p.try("device memory", func() (interface{ Close() error }, error) { return p.ctx.AllocDM(64) })
	p.try("MR of all memory, paged on demand (implicit)", func() (interface{ Close() error }, error) {
		return p.pd.RegisterAll(verbs.AccessLocalWrite)
	})
}

// onDemand lists operations.
func onDemand(operations verbs.ODPOps) string {
	var names []string
	for _, operation := range []struct {
		bit  verbs.ODPOps
		name string
	}{
		{verbs.ODPSend, "SEND"}, {verbs.ODPRecv, "RECV"}, {verbs.ODPWrite, "WRITE"}, {verbs.ODPRead, "READ"}, {verbs.ODPAtomic, "atomics"},
		{verbs.ODPSRQRecv, "SRQ"}, {verbs.ODPFlush, "FLUSH"}, {verbs.ODPAtomicWrite, "ATOMIC_WRITE"},
	} {
		if operations.Has(operation.bit) {
			names = append(names, operation.name)
		}
	}
	if names == nil {
		return yes(false)
	}
	return strings.Join(names, ", ")
}

func (p *prober) queues() {
	p.add("CQ.Resize", yes(p.cq.Resize(32) == nil))
	p.add("CQ.Moderate", yes(p.cq.Moderate(2, time.Microsecond) == nil))
	p.try("CQ with timestamps", func() (interface{ Close() error }, error) {
		return p.ctx.CreateCQ(verbs.CQAttr{CQE: 1, Timestamps: true}, nil)
	})
	p.add("timestamps have a wall time", yes(p.attr.Caps.Has(verbs.CapWallTime)))
	p.add("Context.Clock", yes(p.attr.Caps.Has(verbs.CapClock)))
	srq, err := p.pd.CreateSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 1})
	p.add("SRQ", yes(err == nil))
	if err != nil {
		return
	}
	defer srq.Close()
	p.try("SRQ for RC", func() (interface{ Close() error }, error) { return p.newQP(verbs.QPTypeRC, srq) })
	p.try("SRQ for UD", func() (interface{ Close() error }, error) { return p.newQP(verbs.QPTypeUD, srq) })
	p.add("SRQ limit event", yes(srq.Modify(verbs.SRQAttr{Limit: 1}, verbs.SRQAttrLimit) == nil))
	p.add("SRQ.Modify: size", yes(srq.Modify(verbs.SRQAttr{MaxWR: 8}, verbs.SRQAttrMaxWR) == nil))
}

func (p *prober) limits() {
	a := &p.attr
	for _, limit := range []struct {
		name string
		n    int
	}{
		{"SGEs of a request", a.MaxSGE}, {"bytes inline", a.MaxInline}, {"requests in a queue", a.MaxQPWR}, {"entries of a CQ", a.MaxCQE},
		{"READs and atomics outstanding", a.MaxQPInitRdAtomic},
	} {
		p.add(limit.name, strconv.Itoa(limit.n))
	}
}

// Markers of the table in docs/verbs.md.
const (
	begin = "<!-- table: go run ./verbs/internal/abilities/table -->\n"
	end   = "<!-- end of the table -->\n"
)

// Table makes the table of devices, in Markdown.
func Table(devices []Device) string {
	var b strings.Builder
	var rows []string
	seen := make(map[string]bool)
	b.WriteString("| |")
	for _, d := range devices {
		fmt.Fprintf(&b, " %s |", d.Name)
		for _, a := range d.Abilities {
			if !seen[a.Name] {
				seen[a.Name] = true
				rows = append(rows, a.Name)
			}
		}
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(devices)) + "\n")
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s |", row)
		for _, d := range devices {
			fmt.Fprintf(&b, " %s |", d.value(row))
		}
		b.WriteString("\n")
	}
	return b.String()
}

func (d *Device) value(name string) string {
	for _, a := range d.Abilities {
		if a.Name == name {
			return strings.Replace(a.Value, "no", "", 1)
		}
	}
	return ""
}

// Put replaces the table in a document.
func Put(doc []byte, table string) ([]byte, error) {
	before, rest, ok := bytes.Cut(doc, []byte(begin))
	_, after, ended := bytes.Cut(rest, []byte(end))
	if !ok || !ended {
		return nil, fmt.Errorf("the document lacks %q or %q", begin, end)
	}
	return bytes.Join([][]byte{before, []byte(begin), []byte(table), []byte(end), after}, nil), nil
}

// LinePrefix begins the line in which a device is printed to be recorded.
const LinePrefix = "ABILITIES "

// Line is what the command records.
func (d *Device) Line() string {
	b, err := json.Marshal(d)
	if err != nil {
		panic(err) // it is all strings
	}
	return LinePrefix + string(b)
}

// Compare probes a device and compares it with the record of that name. The error of
// one that differs has the line to record.
func Compare(ctx *verbs.Context, name string) error {
	list, err := Of(ctx)
	if err != nil {
		return err
	}
	devices, err := Recorded()
	if err != nil {
		return err
	}
	now := Device{Name: name, Abilities: list}
	for _, d := range devices {
		if d.Name == name && d.Line() == now.Line() {
			return nil
		}
	}
	return fmt.Errorf("the record of %s is stale; record this by go run ./verbs/internal/abilities/table -record:\n%s", name, now.Line())
}
