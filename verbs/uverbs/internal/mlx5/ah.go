//go:build amd64 || arm64

package mlx5

import (
	"math/rand/v2"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// path is what is the same in all datagrams to one address: struct mlx5_wqe_av
// from stat_rate_sl on.
type path [datagramSize - pathOffset]byte

const (
	pathOffset   = 12
	extendedPath = 1 << 31 // MLX5_EXTENDED_UD_AV, beside the QP's number
)

// rates are the device's numbers of rates by InfiniBand's (enum ib_rate of the
// kernel). What the device does not have is rounded up, and 0 is as fast as the
// port; so are rates above these.
var rates = [...]byte{2: 7, 3: 8, 4: 9, 5: 10, 6: 11, 7: 12, 8: 13, 9: 14, 10: 15, 11: 11, 12: 13, 13: 15, 15: 9, 16: 15, 19: 9, 20: 13}

// CreateAH makes the path of the vector. On Ethernet, and there alone, the kernel
// answers: with the address of the other port.
func (c *context) CreateAH(av *verbs.AddressVector, create func(driver.Udata) error) (any, error) {
	var out createAHOut
	if err := create(driver.Udata{Out: abi.BytesOf(&out)}); err != nil {
		return nil, err
	}
	p := new(path)
	b := p[:]
	if int(av.StaticRate) < len(rates) {
		b[0] = rates[av.StaticRate] << 4
	}
	hasGRH := uint32(0)
	if out.responseLength != 0 {
		b[0] |= av.SL & 7 << 1
		be.PutUint16(b[2:], sourcePort(av.FlowLabel))
		copy(b[8:], out.dmac[:])
	} else {
		b[0] |= av.SL & 15
		b[1] = av.SrcPathBits & 0x7f
		be.PutUint16(b[2:], av.DLID)
		hasGRH = 1 << 30 // reserved on Ethernet, where every packet has one
	}
	if av.IsGlobal {
		b[14], b[15] = av.TrafficClass, av.HopLimit
		be.PutUint32(b[16:], hasGRH|uint32(av.SGIDIndex)<<20|av.FlowLabel&0xfffff)
		copy(b[20:], av.DGID[:])
	}
	return p, nil
}

// sourcePort is the UDP port from which RoCE v2 sends a flow
// (rdma_flow_label_to_udp_sport of the kernel's rdma/ib_verbs.h). Without a flow label any will do:
// switches choose among their ways by it, so each address handle gets one of its own. Of RoCE v1
// the field is reserved.
func sourcePort(flowLabel uint32) uint16 {
	if flowLabel == 0 {
		return uint16(rand.Uint32()) | 0xc000
	}
	return uint16(flowLabel&0x3fff^flowLabel>>14&0x3f) | 0xc000
}

func putDatagram(b []byte, d *verbs.Datagram) {
	be.PutUint64(b, uint64(d.QKey)<<32)
	be.PutUint32(b[8:], d.QPN|extendedPath)
	if p, ok := driver.AddressHandle(d.AH).(*path); ok {
		copy(b[pathOffset:datagramSize], p[:])
	} else {
		clear(b[pathOffset:datagramSize])
	}
}
