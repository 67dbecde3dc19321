//go:build amd64 || arm64

package cm

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// States and attributes of QPs (IB_QPS_*, enum ib_qp_attr_mask).
const (
	stateInit = 1
	stateRTR  = 2
	stateRTS  = 3

	maskState    = 1 << 0
	maskAccess   = 1 << 3
	maskPKey     = 1 << 4
	maskPort     = 1 << 5
	maskQKey     = 1 << 6
	maskAV       = 1 << 7
	maskMTU      = 1 << 8
	maskTimeout  = 1 << 9
	maskRetry    = 1 << 10
	maskRNRRetry = 1 << 11
	maskRQPSN    = 1 << 12
	maskMaxRead  = 1 << 13
	maskMinRNR   = 1 << 15
	maskSQPSN    = 1 << 16
	maskMaxDest  = 1 << 17
	maskDest     = 1 << 20

	accessRemoteWrite = 1 << 1
	accessReadAtomic  = 1<<2 | 1<<3

	defaultQKey    = 0x01234567 // RDMA_UDP_QKEY
	defaultTimeout = 14         // a packet lifetime of 17 ms, and not the one that RoCE's is taken for
)

// path is struct ib_uverbs_ah_attr of the way to the peer.
func (i *identifier) path() []byte {
	b := make([]byte, 32)
	to, address := i.file.host.network.find(i.remote.Addr())
	if to == nil {
		return b
	}
	b[30] = 1 // port
	if i.file.host.port.Ethernet {
		own, _ := i.file.host.port.address(i.local.Addr())
		copy(b, address.GID[:])
		b[20], b[21], b[29] = own.Index, 64, 1
	} else {
		le.PutUint16(b[24:], to.port.LID)
	}
	return b
}

// initQPAttr is ucma_init_qp_attr, with cma.c, rdma_init_qp_attr.
func (f *file) initQPAttr(m *frame.Message, b []byte, out int) unix.Errno {
	const size = 144 // struct ib_uverbs_qp_attr
	i, errno := f.get(le.Uint32(b[8:]))
	to := le.Uint32(b[12:])
	switch {
	case out < size:
		return unix.ENOSPC // ucma.c, ucma_init_qp_attr
	case to > 6:
		return unix.EINVAL // the same
	case errno != 0:
		return errno
	case !i.onDevice:
		return unix.EINVAL // ucma.c, ucma_get_ctx_dev
	}
	a := make([]byte, size)
	put := func(at int, v uint32) { le.PutUint32(a[at:], v) }
	mask, own := uint32(maskState), i.state < requesting || i.kind == typeUD
	switch {
	case own || to == stateInit: // cma_ib_init_qp_attr, cm_init_qp_init_attr
		mask |= maskPKey | maskPort
		a[133] = 1
		if i.kind == typeUD {
			mask |= maskQKey
			put(20, defaultQKey)
		} else {
			mask |= maskAccess
		}
		if !own {
			access := uint32(accessRemoteWrite)
			if i.ourResources() > 0 {
				access |= accessReadAtomic
			}
			put(36, access)
		}
	case to == stateRTR: // cm_init_qp_rtr_attr
		if i.peer == nil || i.state == requesting {
			return unix.EINVAL // cm.c, cm_init_qp_rtr_attr
		}
		mask |= maskAV | maskMTU | maskDest | maskRQPSN | maskMaxDest | maskMinRNR
		put(12, uint32(f.host.port.MTU))
		put(24, i.psn)
		put(32, i.peer.param.qpn)
		copy(a[40:], i.path())
		a[131] = i.ourResources()
	case to == stateRTS: // cm_init_qp_rts_attr
		if i.peer == nil || i.state == requesting {
			return unix.EINVAL // cm.c, cm_init_qp_rts_attr
		}
		mask |= maskSQPSN | maskRetry | maskRNRRetry | maskMaxRead | maskTimeout
		put(28, i.peer.psn)
		a[130] = i.ourDepth()
		a[134], a[135], a[136] = defaultTimeout, i.retries().retry, i.retries().rnrRetry
		if i.timeout != 0 {
			a[134] = i.timeout
		}
	default:
		return unix.EINVAL // cm.c, ib_cm_init_qp_attr
	}
	put(0, mask)
	put(4, to)
	return write(m, le.Uint64(b), a)
}

// ourResources is how many READs the peer may have under way here: what we have said, or
// before that what it has asked for.
func (i *identifier) ourResources() byte { return i.effective().resources }

func (i *identifier) ourDepth() byte { return i.effective().depth }

func (i *identifier) effective() connParam {
	if i.accepted && i.state == requested {
		return connParam{resources: i.resources, depth: i.depth}
	}
	if !i.accepted && i.state >= replied {
		return connParam{resources: i.resources, depth: i.depth}
	}
	return i.param
}

// retries are what the side that has asked says for both, but for RNR: of that each says what the other
// is to do (cm.c, cm_req_handler and cm_rep_handler).
func (i *identifier) retries() connParam {
	if i.accepted {
		return i.peer.param
	}
	p := i.param
	p.rnrRetry = i.peer.param.rnrRetry
	return p
}

// query is ucma_query, with ucma_query_addr, ucma_query_gid and ucma_query_path.
func (f *file) query(m *frame.Message, b []byte, out int) unix.Errno {
	const addresses, paths, gids = 0, 1, 2
	i, errno := f.get(le.Uint32(b[8:]))
	if errno != 0 {
		return errno
	}
	var answer []byte
	switch le.Uint32(b[12:]) {
	case addresses:
		answer = i.addressAnswer(putAddress)
	case gids:
		answer = i.addressAnswer(f.host.network.putGID)
	case paths:
		answer = i.pathAnswer(out)
	default:
		return unix.ENOSYS // ucma.c, ucma_query
	}
	const oldSize = 272 // of addresses, before 5.4
	if out < min(len(answer), oldSize) {
		return unix.ENOSPC // ucma.c, ucma_query_addr; ucma.c, ucma_query_gid; ucma.c, ucma_query_path
	}
	return write(m, le.Uint64(b), answer[:min(out, len(answer))])
}

// addressAnswer is struct rdma_ucm_query_addr_resp.
func (i *identifier) addressAnswer(put func([]byte, netip.AddrPort) uint16) []byte {
	b := make([]byte, 280)
	if i.onDevice {
		be.PutUint64(b, i.file.host.port.GUID)
		b[8] = 1
		le.PutUint16(b[10:], 0xffff)
	}
	le.PutUint16(b[12:], put(b[16:], i.local))
	le.PutUint16(b[14:], put(b[144:], i.remote))
	return b
}

// putGID writes struct sockaddr_ib with the GID of who has an address.
func (n *Network) putGID(b []byte, a netip.AddrPort) uint16 {
	le.PutUint16(b, familyIB)
	be.PutUint16(b[2:], 0xffff)
	if h, address := n.find(a.Addr()); h != nil {
		copy(b[8:], address.GID[:])
	}
	return 48
}

// pathAnswer is struct rdma_ucm_query_path_resp with one struct ib_path_rec_data.
func (i *identifier) pathAnswer(out int) []byte {
	const record, flags = 72, 1 | 2 | 8 | 32 // GMP, primary, both directions
	if i.state < routed || out < 8+record {
		return words(0, 0)
	}
	own := i.file.host.port
	from, _ := own.address(i.local.Addr())
	to, address := i.file.host.network.find(i.remote.Addr())
	b := make([]byte, 8+record)
	le.PutUint32(b, 1)
	le.PutUint32(b[8:], flags)
	p := b[16:]
	if to != nil {
		copy(p[8:], address.GID[:])
		be.PutUint16(p[40:], to.port.LID)
	}
	copy(p[24:], from.GID[:])
	be.PutUint16(p[42:], own.LID)
	if own.Ethernet {
		be.PutUint32(p[44:], 64) // hop limit
	}
	const exactly = 2 << 6
	p[49] = 1 << 7               // reversible
	be.PutUint16(p[50:], 0xffff) // P_Key
	p[54] = exactly | own.MTU
	p[55], p[56] = exactly|16, exactly|defaultTimeout-1
	return b
}
