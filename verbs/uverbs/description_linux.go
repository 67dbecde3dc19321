package uverbs

import "strings"

// Describe describes all RDMA devices of this host, ordered by name. A host
// without the RDMA subsystem has none, which is not an error.
func Describe() ([]Description, error) {
	entries, err := discover()
	if err != nil {
		return nil, err
	}
	list := make([]Description, len(entries))
	for i := range entries {
		e := &entries[i]
		d := Description{DeviceInfo: e.info(), Firmware: e.firmware, Drivable: driverFor(e.driverID) != nil}
		if e.uverbs != "" {
			d.Node = "/" + nodeDir + "/" + e.uverbs
		}
		for port := 1; port <= e.ports; port++ {
			p := thisHost.port(e.name, uint8(port))
			if p.Netdev == "" {
				p.Netdev = netlinkNetdev(e.name, uint8(port))
			}
			// Removed since, or unreadable: the port has no GIDs to show.
			p.GIDs, _ = sysfsGIDs(e.name, uint8(port))
			d.Ports = append(d.Ports, p)
		}
		list[i] = d
	}
	return list, nil
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
	}
}

// numbered takes the text out of "4: ACTIVE".
func numbered(text string) string {
	_, name, ok := strings.Cut(text, ": ")
	if !ok {
		return text
	}
	return name
}
