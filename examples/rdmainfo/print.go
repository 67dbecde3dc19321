package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs"
)

// printer writes for people. The first error of the writer stays.
type printer struct {
	out io.Writer
	err error
}

func (w *printer) line(format string, args ...any) {
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.out, format+"\n", args...)
	}
}

func (w *printer) report(r *report) {
	kernel := 0
	for i := range r.Devices {
		if r.Devices[i].Provider == uverbs.ProviderName {
			kernel++
		}
	}
	if kernel == 0 {
		w.line("no RDMA device of the kernel%s", noDeviceBecause(r.Limits.MissingModules))
		w.line("")
	}
	for i := range r.Devices {
		w.device(&r.Devices[i])
		w.line("")
	}
	w.limits(&r.Limits)
	for _, p := range r.Problems {
		w.line("problem: %s", p)
	}
}

func noDeviceBecause(missing []string) string {
	if len(missing) == 0 {
		return ": no adapter, and no software device (rdma link add rxe0 type rxe netdev eth0)"
	}
	return fmt.Sprintf(": not loaded or not there: %s (modprobe %s)", strings.Join(missing, ", "), missing[0])
}

func (w *printer) device(d *device) {
	w.line("%s: %s%s", d.Name, d.Transport, prefixed(", driver ", d.Driver))
	experimental := uverbs.Experimental(d.Driver)
	switch {
	case d.Usable && experimental:
		w.line("  ramjet can use it%s, by an experimental driver: try -selftest", prefixed(", through ", d.Node))
	case d.Usable:
		w.line("  ramjet can use it%s", prefixed(", through ", d.Node))
	default:
		w.line("  ramjet cannot use it: %s", d.Reason)
		if experimental {
			w.line("  there is an experimental driver for it, which -selftest turns on for as long as it runs")
		}
	}
	w.list("  ", d.NodeType, prefixed("node GUID ", d.NodeGUID), prefixed("system image GUID ", d.ImageGUID), prefixed("firmware ", d.Firmware))
	w.list("  ", d.Maker.String(), prefixed("model ", d.Model), prefixed("board ", d.Board), prefixed("revision ", d.Revision))
	if c := d.Caps; c != nil {
		w.line("  can: %s", strings.Join(c.Abilities, " "))
		for _, p := range c.OnDemand {
			w.line("  pages memory in on demand for %s: %s", p.Service, strings.Join(p.Operations, " "))
		}
		w.line("  most: %d QPs of %d requests with %d SGEs and %d bytes inline, %d CQs of %d, %d MRs of %s, %d PDs, %d SRQs of %d requests with %d SGEs, %d MWs, %d AHs, %d READs under way (%d as responder)",
			c.MaxQP, c.MaxQPWR, c.MaxSGE, c.MaxInline, c.MaxCQ, c.MaxCQE, c.MaxMR, amount(c.MaxMRSize), c.MaxPD, c.MaxSRQ, c.MaxSRQWR, c.MaxSRQSGE, c.MaxMW, c.MaxAH, c.ReadDepth, c.ReadsIn)
	}
	for i := range d.Ports {
		w.port(&d.Ports[i])
	}
}

func (w *printer) port(p *port) {
	text := fmt.Sprintf("  port %d: %s", p.Port, p.State)
	text += prefixed(", ", p.PhysState) + prefixed(", ", p.LinkLayer) + prefixed(", ", p.Rate)
	if p.ActiveMTU > 0 {
		text += fmt.Sprintf(", MTU %d of %d", p.ActiveMTU, p.MaxMTU)
	}
	w.line("%s", text+prefixed(", netdev ", p.Netdev))
	if p.LinkLayer == "InfiniBand" || p.LID != 0 || p.SMLID != 0 {
		w.line("    LID %d, LMC %d, SM LID %d, capability mask %#08x", p.LID, p.LMC, p.SMLID, p.PortCaps)
	}
	if p.MaxMsg > 0 {
		w.line("    messages of up to %s, a table of %d GIDs, one of %d P_Keys", amount(uint64(p.MaxMsg)), p.GIDTable, p.PKeyTable)
	}
	for _, g := range p.GIDs {
		w.line("    GID %d: %s %s%s", g.Index, g.GID, g.Type, prefixed(" ", g.Netdev))
	}
	if t := p.Traffic; t != nil {
		if t.BytesFrom != "" {
			w.line("    received %s, sent %s (counted by %s)", amount(t.RxBytes), amount(t.TxBytes), t.BytesFrom)
		}
		if t.PacketsFrom != "" {
			w.line("    received %d packets, sent %d (counted by %s)", t.RxPackets, t.TxPackets, t.PacketsFrom)
		}
	}
	var counted []string
	for _, c := range p.Counters {
		if c.Value != 0 {
			counted = append(counted, fmt.Sprintf("%s %d", c.Name, c.Value))
		}
	}
	if len(counted) > 0 {
		w.line("    counters: %s", strings.Join(counted, ", "))
	}
}

func (w *printer) limits(l *limits) {
	w.line("limits of this process:")
	exempt := ""
	if l.Memlock.Exempt {
		exempt = "; CAP_IPC_LOCK lifts it, except for siw"
	}
	w.line("  RLIMIT_MEMLOCK %s (hard %s), %s pinned%s", amount(uint64(l.Memlock.Soft)), amount(uint64(l.Memlock.Hard)), amount(l.Memlock.Pinned), exempt)
	w.line("  RLIMIT_NOFILE %s", number(l.OpenFiles))
	for _, c := range l.Cgroups {
		here := ""
		if c.Process != nil {
			here = fmt.Sprintf("; of this process %d and %d", c.Process.Handles, c.Process.Objects)
		}
		w.line("  rdma cgroup %s, %s: hca_handle %d of %s, hca_object %d of %s%s",
			c.Group, c.Device, c.Handles.Current, number(c.Handles.Max), c.Objects.Current, number(c.Objects.Max), here)
	}
	if len(l.Cgroups) == 0 {
		w.line("  no rdma cgroup")
	}
	for _, n := range l.Nodes {
		if n.Error != "" {
			w.line("  %s%s: %s", n.Path, prefixed(" ", strings.Join(nonEmpty(n.Mode, n.Owner, n.Group), " ")), n.Error)
		} else {
			w.line("  %s %s %s %s: may be opened", n.Path, n.Mode, n.Owner, n.Group)
		}
	}
	if len(l.MissingModules) > 0 {
		w.line("  kernel modules that are not loaded: %s", strings.Join(l.MissingModules, ", "))
	}
}

// prefixed is text behind a prefix, or nothing.
func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// list prints what there is of texts, and no line if there is nothing.
func (w *printer) list(indent string, texts ...string) {
	if kept := nonEmpty(texts...); len(kept) > 0 {
		w.line("%s%s", indent, strings.Join(kept, ", "))
	}
}

func nonEmpty(list ...string) (kept []string) {
	for _, s := range list {
		if s != "" {
			kept = append(kept, s)
		}
	}
	return kept
}

func number(l limit) string {
	if uint64(l) == rdmahost.NoLimit {
		return "unlimited"
	}
	return fmt.Sprint(uint64(l))
}

// amount writes a size as people do.
func amount(n uint64) string {
	if n == rdmahost.NoLimit {
		return "unlimited"
	}
	unit := 0
	v := float64(n)
	for ; v >= 1024 && unit < 5; unit++ {
		v /= 1024
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") + " " + [...]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}[unit]
}
