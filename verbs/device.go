package verbs

import (
	"fmt"
	"net/netip"
	"time"
)

// GID is a 128-bit global identifier of a port. On RoCE v2 an IPv4 address
// appears in its IPv4-mapped IPv6 form (InfiniBand Architecture
// Specification, annex A17).
type GID [16]byte

// String returns the GID in IPv6 notation.
func (g GID) String() string { return netip.AddrFrom16(g).String() }

// IsMulticast reports whether the GID is that of a group: also of one of IPv4, in mapped form.
func (g GID) IsMulticast() bool { return netip.AddrFrom16(g).Unmap().IsMulticast() }

// GIDType says which transport a GID table entry selects
// (enum ib_uverbs_gid_type, rdma/ib_user_ioctl_verbs.h).
type GIDType uint32

// The kinds of GID, numbered as the kernel numbers them.
const (
	GIDTypeIB     GIDType = 0 // InfiniBand, or iWARP
	GIDTypeRoCEv1 GIDType = 1
	GIDTypeRoCEv2 GIDType = 2
	GIDTypeSoft   GIDType = 0x100 // names a process on the software HCA
)

// GIDEntry is one row of a port's GID table.
type GIDEntry struct {
	GID     GID
	Index   int
	Port    uint8
	Type    GIDType
	Netdev  string // network interface behind it, empty if there is none
	Ifindex int    // index of that interface, 0 if there is none
}

// MTU is a path MTU in the encoding of the verbs (enum ib_mtu): 1 is 256
// bytes, 5 is 4096.
type MTU uint8

// The path MTUs.
const (
	MTU256  MTU = 1
	MTU512  MTU = 2
	MTU1024 MTU = 3
	MTU2048 MTU = 4
	MTU4096 MTU = 5
)

// Bytes returns the MTU in bytes, or 0 if m is not an MTU.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

// PortState is the state of a port (enum ib_port_state).
type PortState uint8

// The port states.
const (
	PortNop    PortState = 0
	PortDown   PortState = 1
	PortInit   PortState = 2
	PortArmed  PortState = 3
	PortActive PortState = 4
	PortDefer  PortState = 5 // active, but deferred
)

// Transport is the wire protocol of a device; it decides which connection
// manager rules apply and whether immediates exist.
type Transport uint8

// The transports.
const (
	TransportSoft  Transport = iota // software HCA, same host
	TransportIB                     // InfiniBand
	TransportRoCE                   // RDMA over converged Ethernet
	TransportIWARP                  // RDMA over TCP; no immediate data
)

// String names the transport.
func (t Transport) String() string {
	switch t {
	case TransportSoft:
		return "soft"
	case TransportIB:
		return "infiniband"
	case TransportRoCE:
		return "roce"
	case TransportIWARP:
		return "iwarp"
	}
	return fmt.Sprintf("transport(%d)", uint8(t))
}

// Cap is a set of things that a device can do. A caller looks here before it
// uses one; using what is missing returns an error that wraps
// [ErrUnsupported].
type Cap uint64

// The capabilities.
const (
	CapWriteWithImm     Cap = 1 << iota // RDMA WRITE with immediate data
	CapSendWithImm                      // SEND with immediate data
	CapSendWithInv                      // SEND that invalidates an rkey
	CapRead                             // RDMA READ
	CapAtomics                          // CMP_AND_SWP and FETCH_AND_ADD
	CapSRQ                              // shared receive queues
	CapRegisterSlice                    // MRs over memory of the caller, remote access included
	CapThreadWait                       // CompChannel.WaitThread is cheaper than Wait
	CapMemWindow                        // memory windows
	CapOnDemandPaging                   // MRs that need not be pinned
	CapResizeCQ                         // CQ.Resize
	CapUC                               // unreliable connection service
	CapUD                               // unreliable datagram service
	CapAtomicWrite                      // ATOMIC_WRITE
	CapFlush                            // FLUSH
	CapReregister                       // MR.Reregister
	CapDMABuf                           // PD.RegisterDMABuf
	CapMulticast                        // QP.AttachMulticast
	CapModerateCQ                       // CQ.Moderate
	CapTimestamps                       // CQAttr.Timestamps
	CapWallTime                         // Context.WallTime
	CapClock                            // Context.Clock
	CapIOVA                             // MRs whose addresses begin where the caller says: MROptions.IOVA, PD.RegisterMRAt
	CapNullMR                           // PD.AllocNullMR
	CapAdviseMR                         // PD.AdviseMR
	CapInlineIsTransfer                 // inline data is placed at the peer while it is posted: a bounce buffer would be a second copy
	CapXRC                              // Context.OpenXRCDomain, QPs of XRC
	CapRegisterAll                      // PD.RegisterAll
	CapDeviceMemory                     // Context.AllocDM, PD.RegisterDM
	CapBlueFlame                        // requests can be written to registers of the device, which need not fetch them then
)

// Has reports whether all of want is in c.
func (c Cap) Has(want Cap) bool { return c&want == want }

// DeviceInfo describes a device before it is opened.
type DeviceInfo struct {
	Name      string // "soft0", "rxe0", "mlx5_1": unique over all providers
	Provider  string // name of the provider that serves it
	Transport Transport
	Driver    string // kernel driver, for instance "rxe" or "mlx5"; empty for software devices
	NodeGUID  uint64 // 0 if unknown before opening
}

// DeviceAttr holds the limits of an open device (struct
// ib_uverbs_query_device_resp, rdma/ib_user_verbs.h, and what a provider
// knows beside it). Sizes are in bytes.
type DeviceAttr struct {
	DeviceInfo
	// Experimental says that the provider's driver has never run on such a device,
	// but on a model of it.
	Experimental      bool
	FirmwareVersion   string
	VendorID          uint32
	VendorPartID      uint32
	HardwareVersion   uint32
	SystemImageGUID   uint64
	Caps              Cap
	KernelCaps        uint64 // device_cap_flags and device_cap_flags_ex, as the kernel has them
	MaxMRSize         uint64
	MaxDMSize         uint64 // bytes of the device's own memory, 0 without CapDeviceMemory
	MaxQP             int
	MaxQPWR           int // largest send or receive queue
	MaxSGE            int
	MaxSGERead        int // for READ; 0 means MaxSGE
	MaxCQ             int
	MaxCQE            int
	MaxMR             int
	MaxPD             int
	MaxSRQ            int
	MaxSRQWR          int
	MaxSRQSGE         int
	MaxMW             int
	MaxAH             int
	MaxInline         int // largest inline payload of one work request
	MaxQPRdAtomic     int // READs and atomics outstanding for one QP as responder (max_qp_rd_atom)
	MaxQPInitRdAtomic int // the same as initiator (max_qp_init_rd_atom)
	PhysPorts         int
	AckDelay          uint8 // code as verbs.AckTimeout of the device's own delay before an ACK
	ODP               ODPCaps
	// The clock of WC.Timestamp: ticks a second, and the bits that it has. 0
	// without CapTimestamps.
	ClockHz       uint64
	TimestampMask uint64
	// Limits of CQ.Moderate, 0 without CapModerateCQ.
	MaxModerationCount  int
	MaxModerationPeriod time.Duration
	CompVectors         int // completion vectors (num_comp_vectors of struct ib_uverbs_get_context_resp); 0 counts as 1
}

// ODPCaps says for which operations memory need not be pinned (struct
// ib_uverbs_odp_caps and xrc_odp_caps of struct ib_uverbs_ex_query_device_resp,
// rdma/ib_user_verbs.h). A kernel older than XRC's says nothing of that.
type ODPCaps struct {
	General         ODPGeneral
	RC, UC, UD, XRC ODPOps // the services
}

// ODPGeneral says which memory is paged in on demand (enum ibv_odp_general_caps of rdma-core's
// infiniband/verbs.h; rdma/ib_user_verbs.h does not name the bits).
type ODPGeneral uint64

// What memory is paged in on demand.
const (
	ODPSupported ODPGeneral = 1 << iota // that of MRs with AccessOnDemand
	ODPImplicit                         // all that the process has: PD.RegisterAll
)

// Has reports whether all of want is in g.
func (g ODPGeneral) Has(want ODPGeneral) bool { return g&want == want }

// ODPOps is a set of operations that memory need not be pinned for (enum
// ibv_odp_transport_cap_bits of rdma-core's infiniband/verbs.h).
type ODPOps uint32

// The operations on memory that is paged in on demand, at either end.
const (
	ODPSend ODPOps = 1 << iota
	ODPRecv
	ODPWrite
	ODPRead
	ODPAtomic
	ODPSRQRecv // a receive from an SRQ
	ODPFlush
	ODPAtomicWrite
)

// Has reports whether all of want is in o.
func (o ODPOps) Has(want ODPOps) bool { return o&want == want }

// PortAttr describes a port (struct ib_uverbs_query_port_resp).
type PortAttr struct {
	State       PortState
	MaxMTU      MTU
	ActiveMTU   MTU
	GIDTableLen int
	MaxMsgSize  uint32 // bytes of the longest message, 0 if unknown
	LID         uint16
	LinkLayer   uint8 // 1 InfiniBand, 2 Ethernet, 0 unspecified
	PhysState   uint8 // 1 sleep, 2 polling, 3 disabled, 4 training, 5 link up, 6 recovery, 7 test
	ActiveWidth uint8 // 1: 1x, 2: 4x, 4: 8x, 8: 12x, 16: 2x
	ActiveSpeed uint8 // 1: 2.5, 2: 5, 4 and 8: 10, 16: 14, 32: 25, 64: 50, 128: 100 Gb/s a lane
	SMLID       uint16
	LMC         uint8
	PKeyTblLen  uint16
}
