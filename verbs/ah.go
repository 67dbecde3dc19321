package verbs

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// AH is an address handle: where the messages of UD QPs go.
type AH struct {
	pd  *PD
	drv AHDriver
	av  AddressVector
}

// CreateAH makes an address handle. The error wraps ErrUnsupported on a
// device without CapUD.
func (pd *PD) CreateAH(av AddressVector) (*AH, error) {
	const op = "create AH"
	d, ok := pd.drv.(AddressDriver)
	if !ok || !pd.ctx.attr.Caps.Has(CapUD) {
		return nil, pd.ctx.wrap(op, ErrUnsupported)
	}
	if err := checkAttrValues(&QPAttr{AV: av, Port: av.Port}, QPAttrAV|QPAttrPort, &pd.ctx.attr); err != nil {
		return nil, pd.ctx.wrap(op, err)
	}
	drv, err := charged(pd.ctx, func() (AHDriver, error) { return d.CreateAH(&av) })
	if err != nil {
		return nil, pd.ctx.wrap(op, err)
	}
	return &AH{pd: pd, drv: drv, av: av}, nil
}

// GRHSize is how many bytes lie before the payload of what a UD QP receives: the global route
// header, or on RoCE v2 the header of IPv6, or 20 bytes and that of IPv4 (InfiniBand Architecture
// Specification 11.4.1.2, annex A17).
const GRHSize = 40

// CreateReplyAH makes the address handle of who has sent the message of wc (ibv_create_ah_from_wc).
// received is what the receive holds, of which the first GRHSize bytes count, and port that of the
// QP. The other end's QP number is WC.SrcQPN.
func (pd *PD) CreateReplyAH(wc *WC, received []byte, port uint8) (*AH, error) {
	av, err := pd.ctx.ReplyAddress(wc, received, port)
	if err != nil {
		return nil, err
	}
	return pd.CreateAH(av)
}

// ReplyAddress is the way back to who has sent the message of wc (ibv_init_ah_from_wc), as for
// CreateReplyAH. The error wraps ErrInvalid if the message did not come to an address of the port.
func (c *Context) ReplyAddress(wc *WC, received []byte, port uint8) (AddressVector, error) {
	const op = "find the way back"
	if err := c.checkPort(port); err != nil {
		return AddressVector{}, c.wrap(op, err)
	}
	av := AddressVector{DLID: wc.SLID, SL: wc.SL, SrcPathBits: wc.PathBits, Port: port}
	if wc.Flags&WCGRH == 0 {
		return av, nil
	}
	if len(received) < GRHSize {
		return AddressVector{}, c.wrap(op, fmt.Errorf("%w: %d bytes, the route header has %d", ErrInvalid, len(received), GRHSize))
	}
	to, err := av.reverse(received[:GRHSize])
	if err == nil {
		av.SGIDIndex, err = c.ownGID(port, to)
	}
	return av, c.wrap(op, err)
}

// maxHops is the hop limit of an answer: what is left of the message's own says nothing of the way
// back.
const maxHops = 255

// reverse fills in what a route header says, and returns where the message went.
func (av *AddressVector) reverse(grh []byte) (to GID, err error) {
	av.IsGlobal, av.HopLimit = true, maxHops
	first := binary.BigEndian.Uint32(grh)
	// What lies before the header of IPv4 may be anything. Who makes no packet, as rxe between
	// QPs of one host, makes no sum.
	if ip4 := grh[20:]; ip4[0] == 0x45 && (first>>28 != 6 || sumOf(ip4) == 0xffff) {
		av.TrafficClass = ip4[1]
		av.DGID = netip.AddrFrom16(netip.AddrFrom4([4]byte(ip4[12:])).As16()).As16()
		return netip.AddrFrom4([4]byte(ip4[16:])).As16(), nil
	}
	if first>>28 != 6 {
		return GID{}, fmt.Errorf("%w: no route header: it begins with %#x", ErrInvalid, first)
	}
	av.TrafficClass, av.FlowLabel = byte(first>>20), first&0xfffff
	av.DGID = GID(grh[8:24])
	return GID(grh[24:40]), nil
}

// sumOf is the checksum of an IPv4 header, of which it is a part: 0xffff if it is right.
func sumOf(header []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	sum = sum&0xffff + sum>>16
	return uint16(sum + sum>>16)
}

// ownGID finds the index of an address of a port. For a group it is the first one that sends to the
// group's version of IP, where that is between the devices, and by RoCE v2 where there is that.
func (c *Context) ownGID(port uint8, to GID) (uint8, error) {
	list, err := c.drv.QueryGIDs(port)
	if err != nil {
		return 0, err
	}
	index := -1
	var chosen GIDType
	for _, g := range list {
		switch {
		case g.Index > 255:
			continue // an address vector has no room for it
		case to.IsMulticast():
			if g.Type != GIDTypeSoft && netip.AddrFrom16(g.GID).Is4In6() != netip.AddrFrom16(to).Is4In6() {
				continue
			}
		case g.GID != to:
			continue
		}
		if index < 0 || chosen == GIDTypeRoCEv1 && g.Type == GIDTypeRoCEv2 {
			index, chosen = g.Index, g.Type
		}
	}
	if index < 0 {
		return 0, fmt.Errorf("%w: the message went to %v, which is no address of port %d", ErrInvalid, to, port)
	}
	return uint8(index), nil
}

// Driver returns the provider's object.
func (ah *AH) Driver() AHDriver { return ah.drv }

// Close destroys the handle. Work requests that use it must be done before.
func (ah *AH) Close() error { return ah.pd.ctx.ended("destroy AH", ah.drv.Destroy()) }
