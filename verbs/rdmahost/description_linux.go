package rdmahost

import (
	"path"
	"strconv"
	"strings"
)

// Describe describes all RDMA devices of this host, ordered by name. A host
// without the RDMA subsystem has none, which is not an error.
func Describe() ([]Description, error) {
	entries, err := Devices()
	if err != nil {
		return nil, err
	}
	list := make([]Description, len(entries))
	for i := range entries {
		e := &entries[i]
		d := Description{DeviceInfo: e.Info(), Firmware: e.Firmware}
		thisHost.identify(&d)
		if e.Node != "" {
			d.Node = "/" + nodeDir + "/" + e.Node
		}
		for port := 1; port <= e.Ports; port++ {
			p := thisHost.port(e.Name, uint8(port))
			if p.Netdev == "" {
				p.Netdev = netlinkNetdev(e.Name, uint8(port))
			}
			// Removed since, or unreadable: the port has no GIDs to show.
			p.GIDs, _ = GIDs(e.Name, uint8(port))
			d.Ports = append(d.Ports, p)
		}
		list[i] = d
	}
	return list, nil
}

// identify reads what the device says it is. What is missing stays empty.
func (h host) identify(d *Description) {
	dir := path.Join(classInfiniband, d.Name)
	d.NodeType = numbered(h.textOr("", dir, "node_type"))
	d.Model = h.textOr("", dir, "hca_type")
	d.Board = h.textOr("", dir, "board_id")
	d.Revision = h.textOr("", dir, "hw_rev")
	d.SystemImageGUID, _ = parseGUID(h.textOr("", dir, "sys_image_guid"))
}

// port reads the states of a port. What is missing stays empty.
func (h host) port(device string, port uint8) PortDescription {
	dir := h.portDir(device, port)
	return PortDescription{
		Port:      port,
		State:     numbered(h.textOr("", dir, "state")),
		PhysState: numbered(h.textOr("", dir, "phys_state")),
		LinkLayer: h.textOr("", dir, "link_layer"),
		Rate:      h.textOr("", dir, "rate"),
		Netdev:    h.netdev(device, port),

		LID:          uint32(h.number(32, dir, "lid")),
		SMLID:        uint32(h.number(32, dir, "sm_lid")),
		LMC:          uint8(h.number(8, dir, "lid_mask_count")),
		Capabilities: uint32(h.number(32, dir, "cap_mask")),
	}
}

// number reads a number of so many bits, decimal or with 0x before it. It is 0
// if there is none.
func (h host) number(bits int, elem ...string) uint64 {
	n, err := strconv.ParseUint(h.textOr("", elem...), 0, bits)
	if err != nil {
		return 0 // and not the largest, which ParseUint returns for one too large
	}
	return n
}

// numbered takes the text out of "4: ACTIVE".
func numbered(text string) string {
	_, name, ok := strings.Cut(text, ": ")
	if !ok {
		return text
	}
	return name
}
