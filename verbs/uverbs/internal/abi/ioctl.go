package abi

// The ioctl interface: its header and attributes, and the
// methods that the provider uses.

// IoctlHeader is struct ib_uverbs_ioctl_hdr (rdma/rdma_user_ioctl_cmds.h).
type IoctlHeader struct {
	Length   uint16
	ObjectID uint16
	MethodID uint16
	NumAttrs uint16
	_        uint64 // reserved1
	DriverID uint32
	_        uint32 // reserved2
}

// IoctlAttr is struct ib_uverbs_attr. Data holds up to eight bytes of input,
// a handle, or else an address.
type IoctlAttr struct {
	AttrID uint16
	Len    uint16
	Flags  uint16
	_      uint8 // elemID
	_      uint8 // reserved
	Data   uint64
}

// GIDEntry is struct ib_uverbs_gid_entry (rdma/ib_user_ioctl_verbs.h).
type GIDEntry struct {
	GID     [16]uint8
	Index   uint32
	PortNum uint32
	GIDType uint32
	Ifindex uint32
}

// The object, method and attributes of INVOKE_WRITE
// (rdma/ib_user_ioctl_cmds.h).
const (
	ObjectDevice       = 0
	methodInvokeWrite  = 0
	attrCoreIn         = 0
	attrCoreOut        = 1
	attrWriteCommand   = 2
	attrDriverIn       = 0x1000
	attrDriverOut      = 0x1001
	attrFlagMandatory  = 1
	inlineAttr         = 8 // input of up to so many bytes lies in the attribute
	IoctlHeaderSize    = 24
	IoctlAttributeSize = 16
)

// The native method QUERY_GID_TABLE (rdma/ib_user_ioctl_cmds.h, kernel 5.10)
// and its attributes.
const (
	MethodQueryGIDTable = 5
	AttrGIDEntrySize    = 0
	AttrGIDFlags        = 1
	AttrGIDEntries      = 2
	AttrGIDCount        = 3
)

// The native method ADVISE_MR of ObjectMR (rdma/ib_user_ioctl_cmds.h, kernel 5.0), its
// attributes, and its flag (rdma/ib_user_ioctl_verbs.h).
const (
	MethodAdviseMR  = 2
	AttrAdvisePD    = 0
	AttrAdvice      = 1
	AttrAdviseFlags = 2
	AttrAdviseList  = 3
	AdviseFlush     = 1
)

// The native methods DM_ALLOC and DM_FREE of ObjectDM (rdma/ib_user_ioctl_cmds.h, kernel 4.17)
// and their attributes.
const (
	ObjectDM             = 14
	MethodAllocDM        = 0
	AttrAllocDMHandle    = 0
	AttrAllocDMLength    = 1
	AttrAllocDMAlignment = 2 // log2
	MethodFreeDM         = 1
	AttrFreeDMHandle     = 0
)

// The native method DM_MR_REG of ObjectMR (the same) and its attributes.
const (
	MethodRegDM     = 0
	AttrRegDMHandle = 0
	AttrRegDMOffset = 1
	AttrRegDMLength = 2
	AttrRegDMPD     = 3
	AttrRegDMAccess = 4
	AttrRegDMMemory = 5
	AttrRegDMLKey   = 6
	AttrRegDMRKey   = 7
)

// The native method REG_DMABUF_MR (rdma/ib_user_ioctl_cmds.h, kernel 5.12)
// and its attributes.
const (
	ObjectMR          = 7
	MethodRegDMABuf   = 4
	AttrDMABufHandle  = 0
	AttrDMABufPD      = 1
	AttrDMABufOffset  = 2
	AttrDMABufLength  = 3
	AttrDMABufIOVA    = 4
	AttrDMABufFD      = 5
	AttrDMABufAccess  = 6
	AttrDMABufOutLKey = 7
	AttrDMABufOutRKey = 8
)
