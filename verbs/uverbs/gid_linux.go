package uverbs

import (
	"errors"
	"net"
	"runtime"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

func (d *device) QueryGIDs(port uint8) ([]verbs.GIDEntry, error) {
	list, err := d.gidTable(port)
	if err != nil && !errors.Is(err, verbs.ErrClosed) {
		return rdmahost.GIDs(d.entry.Name, port)
	}
	return list, err
}

// gidTable asks the kernel for the table of all ports without empty rows.
func (d *device) gidTable(port uint8) ([]verbs.GIDEntry, error) {
	attr, err := d.QueryPort(port)
	if err != nil {
		return nil, err
	}
	ports := max(d.entry.Ports, 1)
	const most = (1<<16 - 1) / 32 // the length of an attribute has 16 bits
	rows := make([]gidEntry, min(max(attr.GIDTableLen, 1)*ports, most))
	var pin runtime.Pinner
	pin.Pin(&rows[0])
	defer pin.Unpin()
	n, err := d.queryGIDTable(rows)
	if err != nil {
		return nil, err
	}
	var list []verbs.GIDEntry
	for _, r := range rows[:min(n, uint64(len(rows)))] {
		if r.portNum != uint32(port) {
			continue
		}
		e := verbs.GIDEntry{GID: r.gid, Index: int(int32(r.index)), Port: port, Type: verbs.GIDType(r.gidType), Ifindex: int(int32(r.ifindex))}
		if ifi, err := net.InterfaceByIndex(e.Ifindex); err == nil {
			e.Netdev = ifi.Name
		}
		list = append(list, e)
	}
	return list, nil
}

func (d *device) queryGIDTable(rows []gidEntry) (n uint64, err error) {
	d.life.RLock()
	defer d.life.RUnlock()
	if d.closed {
		return 0, verbs.ErrClosed
	}
	p, err := takePage()
	if err != nil {
		return 0, err
	}
	defer returnPage(p)
	call := ioctlCall{page: p, object: objectDevice, method: methodQueryGIDTable}
	call.constant(attrGIDEntrySize, uint64(sizeOf[gidEntry]()))
	call.in(attrGIDFlags, pageIn, 4)
	call.add(ioctlAttr{attrID: attrGIDEntries, len: uint16(len(rows) * sizeOf[gidEntry]()), data: addressOf(bytesOf(&rows[0]))})
	call.out(attrGIDCount, pageOut, 8)
	if err := call.run(&d.file); err != nil {
		return 0, d.failed("QUERY_GID_TABLE", err)
	}
	return *viewAt[uint64](p, pageOut), nil
}
