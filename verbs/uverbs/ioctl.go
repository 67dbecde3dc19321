package uverbs

// The ioctl interface: its one command, its header and attributes, and the
// methods that the provider uses.

// ioctlCommand is RDMA_VERBS_IOCTL (rdma/rdma_user_ioctl_cmds.h).
const ioctlCommand = 0xC0181B01

// ioctlHeader is struct ib_uverbs_ioctl_hdr (rdma/rdma_user_ioctl_cmds.h).
type ioctlHeader struct {
	length   uint16
	objectID uint16
	methodID uint16
	numAttrs uint16
	_        uint64 // reserved1
	driverID uint32
	_        uint32 // reserved2
}

// ioctlAttr is struct ib_uverbs_attr. data holds up to eight bytes of input,
// a handle, or else an address.
type ioctlAttr struct {
	attrID uint16
	len    uint16
	flags  uint16
	_      uint8 // elemID
	_      uint8 // reserved
	data   uint64
}

// gidEntry is struct ib_uverbs_gid_entry (rdma/ib_user_ioctl_verbs.h).
type gidEntry struct {
	gid     [16]uint8
	index   uint32
	portNum uint32
	gidType uint32
	ifindex uint32
}

// The object, method and attributes of INVOKE_WRITE
// (rdma/ib_user_ioctl_cmds.h).
const (
	objectDevice       = 0
	methodInvokeWrite  = 0
	attrCoreIn         = 0
	attrCoreOut        = 1
	attrWriteCommand   = 2
	attrDriverIn       = 0x1000
	attrDriverOut      = 0x1001
	attrFlagMandatory  = 1
	inlineAttr         = 8 // input of up to so many bytes lies in the attribute
	ioctlHeaderSize    = 24
	ioctlAttributeSize = 16
)

// The native method QUERY_GID_TABLE (rdma/ib_user_ioctl_cmds.h, kernel 5.10)
// and its attributes.
const (
	methodQueryGIDTable = 5
	attrGIDEntrySize    = 0
	attrGIDFlags        = 1
	attrGIDEntries      = 2
	attrGIDCount        = 3
)

// The native method REG_DMABUF_MR (rdma/ib_user_ioctl_cmds.h, kernel 5.12)
// and its attributes.
const (
	objectMR          = 7
	methodRegDMABuf   = 4
	attrDMABufHandle  = 0
	attrDMABufPD      = 1
	attrDMABufOffset  = 2
	attrDMABufLength  = 3
	attrDMABufIOVA    = 4
	attrDMABufFD      = 5
	attrDMABufAccess  = 6
	attrDMABufOutLKey = 7
	attrDMABufOutRKey = 8
)
