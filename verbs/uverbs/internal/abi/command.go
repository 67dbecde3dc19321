package abi

// Command is a command of the write interface (enum ib_uverbs_write_cmds,
// rdma/ib_user_verbs.h), which the INVOKE_WRITE ioctl takes too.
type Command uint32

// The commands.
const (
	CmdGetContext        Command = 0
	CmdQueryDevice       Command = 1
	CmdQueryPort         Command = 2
	CmdAllocPD           Command = 3
	CmdDeallocPD         Command = 4
	CmdCreateAH          Command = 5
	CmdDestroyAH         Command = 8
	CmdRegMR             Command = 9
	CmdReregMR           Command = 11
	CmdDeregMR           Command = 13
	CmdAllocMW           Command = 14
	CmdDeallocMW         Command = 16
	CmdCreateCompChannel Command = 17
	CmdCreateCQ          Command = 18
	CmdResizeCQ          Command = 19
	CmdDestroyCQ         Command = 20
	CmdReqNotifyCQ       Command = 23
	CmdCreateQP          Command = 24
	CmdQueryQP           Command = 25
	CmdModifyQP          Command = 26
	CmdDestroyQP         Command = 27
	CmdPostSend          Command = 28
	CmdAttachMulticast   Command = 30
	CmdDetachMulticast   Command = 31
	CmdCreateSRQ         Command = 32
	CmdModifySRQ         Command = 33
	CmdQuerySRQ          Command = 34
	CmdDestroySRQ        Command = 35
	CmdOpenXRCDomain     Command = 37
	CmdCloseXRCDomain    Command = 38
	CmdCreateXSRQ        Command = 39
	CmdOpenQP            Command = 40

	// cmdExtended marks the commands of the second generation
	// (IB_USER_VERBS_CMD_FLAG_EXTENDED), numbered like those of the first.
	cmdExtended      Command = 0x80000000
	CmdExQueryDevice         = cmdExtended | 1
	CmdExModifyCQ            = cmdExtended | 57
)

var commandNames = map[Command]string{
	CmdGetContext: "GET_CONTEXT", CmdQueryDevice: "QUERY_DEVICE", CmdExQueryDevice: "EX_QUERY_DEVICE", CmdExModifyCQ: "EX_MODIFY_CQ",
	CmdQueryPort: "QUERY_PORT", CmdAllocPD: "ALLOC_PD", CmdDeallocPD: "DEALLOC_PD",
	CmdCreateAH: "CREATE_AH", CmdDestroyAH: "DESTROY_AH", CmdRegMR: "REG_MR", CmdReregMR: "REREG_MR",
	CmdDeregMR: "DEREG_MR", CmdAllocMW: "ALLOC_MW", CmdDeallocMW: "DEALLOC_MW",
	CmdCreateCompChannel: "CREATE_COMP_CHANNEL", CmdCreateCQ: "CREATE_CQ", CmdResizeCQ: "RESIZE_CQ",
	CmdDestroyCQ: "DESTROY_CQ", CmdReqNotifyCQ: "REQ_NOTIFY_CQ", CmdCreateQP: "CREATE_QP",
	CmdQueryQP: "QUERY_QP", CmdModifyQP: "MODIFY_QP", CmdDestroyQP: "DESTROY_QP", CmdPostSend: "POST_SEND",
	CmdAttachMulticast: "ATTACH_MCAST", CmdDetachMulticast: "DETACH_MCAST",
	CmdCreateSRQ: "CREATE_SRQ", CmdModifySRQ: "MODIFY_SRQ", CmdQuerySRQ: "QUERY_SRQ", CmdDestroySRQ: "DESTROY_SRQ",
	CmdOpenXRCDomain: "OPEN_XRCD", CmdCloseXRCDomain: "CLOSE_XRCD", CmdCreateXSRQ: "CREATE_XSRQ", CmdOpenQP: "OPEN_QP",
}

// String names the command as the header does.
func (c Command) String() string { return commandNames[c] }

// Request is a command and its parts. In is the structure of the header with
// the address of the answer, if it has one, left 0; Out is the answer. The
// driver's parts come behind both.
type Request struct {
	Cmd      Command
	In, Out  []byte
	UdataIn  []byte
	UdataOut []byte
}

// The parts of a page. The write interface wants the driver's parts right
// behind the core's, and the ioctl interface takes them anywhere.
const (
	pageAttrs = 0    // the ioctl header and attributes, or the write header before PageIn
	PageIn    = 512  // in, udataIn
	PageOut   = 2048 // out, udataOut
)
