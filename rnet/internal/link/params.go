package link

import "fmt"

// Params are what one end tells the other about itself.
type Params struct {
	RingAddr uint64
	RingKey  uint32
	RingSize uint32
	Slots    uint32
	Probes   bool // it answers probes
	Short    bool // short messages may come in a SEND
}

// Check tells what is wrong with what a peer has said of itself.
func (p *Params) Check() error {
	switch {
	case p.RingSize < MinRing || p.RingSize > MaxRing || p.RingSize&(p.RingSize-1) != 0:
		return fmt.Errorf("ring of %d bytes", p.RingSize)
	case p.RingAddr+uint64(p.RingSize) < p.RingAddr:
		return fmt.Errorf("ring at %#x wraps around", p.RingAddr)
	case p.Slots < MinSlots || p.Slots > MaxSlots:
		return fmt.Errorf("%d receives", p.Slots)
	}
	return nil
}

// Params returns what the peer has to know.
func (l *Link) Params() Params {
	return Params{
		RingAddr: l.in.mr.Addr(), RingKey: l.in.mr.RKey(), RingSize: l.in.size, Slots: l.has.slots,
		Probes: l.has.probes, Short: l.has.emulation != nil && l.has.emulation.place >= shortMessage,
	}
}
