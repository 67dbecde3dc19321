package uverbs

import (
	"errors"
	"net"
	"runtime"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
)

func (d *device) QueryGIDs(port uint8) ([]verbs.GIDEntry, error) {
	list, err := d.gidTable(port)
	if err != nil && !errors.Is(err, verbs.ErrClosed) {
		return rdmahost.GIDs(d.entry.Name, port)
	}
	return list, err
}

// QueryPKey reads sysfs, for the kernel has no command for that.
func (d *device) QueryPKey(port uint8, index uint16) (uint16, error) {
	return rdmahost.PKey(d.entry.Name, port, index)
}

// gidTable asks the kernel for the table of all ports without empty rows.
func (d *device) gidTable(port uint8) ([]verbs.GIDEntry, error) {
	attr, err := d.QueryPort(port)
	if err != nil {
		return nil, err
	}
	ports := max(d.entry.Ports, 1)
	const most = (1<<16 - 1) / 32 // the length of an attribute has 16 bits
	rows := make([]abi.GIDEntry, min(max(attr.GIDTableLen, 1)*ports, most))
	var pin runtime.Pinner
	pin.Pin(&rows[0])
	defer pin.Unpin()
	n, err := d.queryGIDTable(rows)
	if err != nil {
		return nil, err
	}
	var list []verbs.GIDEntry
	for _, r := range rows[:min(n, uint64(len(rows)))] {
		if r.PortNum != uint32(port) {
			continue
		}
		e := verbs.GIDEntry{GID: r.GID, Index: int(int32(r.Index)), Port: port, Type: verbs.GIDType(r.GIDType), Ifindex: int(int32(r.Ifindex))}
		if ifi, err := net.InterfaceByIndex(e.Ifindex); err == nil {
			e.Netdev = ifi.Name
		}
		list = append(list, e)
	}
	return list, nil
}

func (d *device) queryGIDTable(rows []abi.GIDEntry) (n uint64, err error) {
	err = d.method("QUERY_GID_TABLE", func(page []byte) abi.Call {
		call := abi.Call{Page: page, Object: abi.ObjectDevice, Method: abi.MethodQueryGIDTable}
		call.Constant(abi.AttrGIDEntrySize, uint64(abi.SizeOf[abi.GIDEntry]()))
		call.In(abi.AttrGIDFlags, abi.PageIn, 4)
		call.Add(abi.IoctlAttr{AttrID: abi.AttrGIDEntries, Len: uint16(len(rows) * abi.SizeOf[abi.GIDEntry]()), Data: abi.AddressOf(abi.BytesOf(&rows[0]))})
		call.Out(abi.AttrGIDCount, abi.PageOut, 8)
		return call
	}, func(call *abi.Call) { n = *abi.ViewAt[uint64](call.Page, abi.PageOut) })
	return n, err
}
