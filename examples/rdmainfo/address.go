package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/kernelcm"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

// address is what a dial to an address comes to.
type address struct {
	Address   string  `json:"address"`
	Error     string  `json:"error,omitempty"` // it has no answer at all
	Transport string  `json:"transport,omitempty"`
	Device    string  `json:"device,omitempty"`
	Reason    string  `json:"reason,omitempty"` // code; "none": there is nothing faster
	Meaning   string  `json:"meaning,omitempty"`
	Remedy    string  `json:"remedy,omitempty"`
	Cause     string  `json:"cause,omitempty"`
	Took      string  `json:"took,omitempty"`
	Routes    []route `json:"routes"`
}

// route is a way to one IP address by one fabric, whether anybody listens
// there or not.
type route struct {
	Fabric string `json:"fabric"` // "soft" or "kernel"
	IP     string `json:"ip"`
	Device string `json:"device,omitempty"`
	Port   uint8  `json:"port,omitempty"` // of the device
	Local  string `json:"local,omitempty"`
	Error  string `json:"error,omitempty"`

	several bool // the device has more ports than this one
}

// fabrics are those that a dial has.
func fabrics() []rcm.Fabric {
	return []rcm.Fabric{softcm.New(softcm.Config{}), kernelcm.New(kernelcm.Config{})}
}

// try dials an address, and asks each fabric for its routes to it. A fabric may wait long for a
// host that does not answer: the dial does not share its time with them.
func try(ctx context.Context, addr string, timeout, headStart time.Duration, fabrics ...rcm.Fabric) address {
	a := address{Address: addr, Routes: []route{}}
	dialing, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	list, err := lookup(dialing, addr)
	if err != nil {
		a.Error = err.Error()
		return a
	}
	a.dial(dialing, headStart)
	for _, ip := range list {
		for _, fabric := range fabrics {
			a.Routes = append(a.Routes, resolve(ctx, fabric, ip, timeout))
		}
	}
	return a
}

// lookup resolves the names of an address.
func lookup(ctx context.Context, addr string) ([]netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	if host == "" {
		host = "localhost" // as net.Dial does
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	list := make([]netip.AddrPort, len(ips))
	for i, ip := range ips {
		list[i] = netip.AddrPortFrom(ip.Unmap(), uint16(port))
	}
	return slices.Compact(list), nil
}

func resolve(ctx context.Context, fabric rcm.Fabric, addr netip.AddrPort, timeout time.Duration) route {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r := route{Fabric: fabric.Name(), IP: addr.String()}
	found, err := fabric.Resolve(ctx, addr)
	if err != nil {
		r.Error = err.Error()
		return r
	}
	defer found.Close()
	r.Device, r.Port, r.Local = found.Device(), found.Port(), found.LocalAddr().String()
	r.several = hasSeveralPorts(r.Device)
	return r
}

// hasSeveralPorts reports whether a device needs its port named. It is false
// for a device that cannot be asked; the software HCA has one port.
func hasSeveralPorts(device string) bool {
	list, _ := rdmahost.Describe()
	i := slices.IndexFunc(list, func(d rdmahost.Description) bool { return d.Name == device })
	return i >= 0 && len(list[i].Ports) > 1
}

// over names the device and, if there is a choice, its port, as RNET_DEVICE
// takes them.
func (r *route) over() string {
	if r.several {
		return fmt.Sprintf("%s/%d", r.Device, r.Port)
	}
	return r.Device
}

// dial connects and closes, and asks what became of it.
func (a *address) dial(ctx context.Context, headStart time.Duration) {
	d := rnet.Dialer{HeadStart: headStart}
	conn, err := d.DialContext(ctx, "tcp", a.Address)
	if err != nil {
		a.Error = err.Error()
	} else {
		a.Device = deviceOf(conn)
		conn.Close()
	}
	list := rnet.Explain(a.Address)
	if len(list) == 0 {
		return
	}
	last := list[len(list)-1]
	a.Reason, a.Meaning, a.Took = last.Reason, last.Meaning, seconds(last.Took).String()
	if err == nil {
		a.Transport = string(last.Transport)
	}
	if a.Reason != "none" {
		a.Remedy = last.Remedy
	}
	if last.Err != nil {
		a.Cause = last.Err.Error()
	}
}

// deviceOf names the device that an accelerated connection runs over.
func deviceOf(conn net.Conn) string {
	c, ok := conn.(*rnet.Conn)
	if !ok {
		return ""
	}
	for _, s := range rnet.ReadStats().Sessions {
		if s.Dialed && string(s.Transport) == string(c.Stats().Transport) && s.RemoteAddr.String() == c.RemoteAddr().String() {
			return s.Device
		}
	}
	return ""
}

// address prints the answer for people.
func (w *printer) address(a *address) {
	switch {
	case a.Transport != "" && a.Reason == "none":
		w.line("%s: a dial takes %s%s, the fastest there is (%s)", a.Address, a.Transport, over(a.Device), a.Took)
	case a.Transport != "":
		w.line("%s: a dial takes %s%s (%s)", a.Address, a.Transport, over(a.Device), a.Took)
		w.line("  why nothing faster: %s: %s", a.Reason, a.Meaning)
		if a.Cause != "" {
			w.line("  cause: %s", a.Cause)
		}
		if a.Remedy != "" {
			w.line("  remedy: %s", a.Remedy)
		}
	default:
		w.line("%s: a dial fails: %s", a.Address, a.Error)
	}
	for _, r := range a.Routes {
		if r.Error != "" {
			w.line("  %-6s to %s: %s", r.Fabric, r.IP, r.Error)
		} else {
			w.line("  %-6s to %s: from %s over %s", r.Fabric, r.IP, r.Local, r.over())
		}
	}
}

func over(device string) string {
	if device == "" {
		return ""
	}
	return " over " + device
}
