package uverbs

// command is a command of the write interface (enum ib_uverbs_write_cmds,
// rdma/ib_user_verbs.h), which the INVOKE_WRITE ioctl takes too.
type command uint32

// The commands.
const (
	cmdGetContext        command = 0
	cmdQueryDevice       command = 1
	cmdQueryPort         command = 2
	cmdAllocPD           command = 3
	cmdDeallocPD         command = 4
	cmdCreateAH          command = 5
	cmdDestroyAH         command = 8
	cmdRegMR             command = 9
	cmdReregMR           command = 11
	cmdDeregMR           command = 13
	cmdAllocMW           command = 14
	cmdDeallocMW         command = 16
	cmdCreateCompChannel command = 17
	cmdCreateCQ          command = 18
	cmdResizeCQ          command = 19
	cmdDestroyCQ         command = 20
	cmdReqNotifyCQ       command = 23
	cmdCreateQP          command = 24
	cmdQueryQP           command = 25
	cmdModifyQP          command = 26
	cmdDestroyQP         command = 27
	cmdPostSend          command = 28
	cmdCreateSRQ         command = 32
	cmdModifySRQ         command = 33
	cmdQuerySRQ          command = 34
	cmdDestroySRQ        command = 35

	// cmdExtended marks the commands of the second generation
	// (IB_USER_VERBS_CMD_FLAG_EXTENDED), numbered like those of the first.
	cmdExtended      command = 0x80000000
	cmdExQueryDevice         = cmdExtended | 1
)

var commandNames = map[command]string{
	cmdGetContext: "GET_CONTEXT", cmdQueryDevice: "QUERY_DEVICE", cmdExQueryDevice: "EX_QUERY_DEVICE",
	cmdQueryPort: "QUERY_PORT", cmdAllocPD: "ALLOC_PD", cmdDeallocPD: "DEALLOC_PD",
	cmdCreateAH: "CREATE_AH", cmdDestroyAH: "DESTROY_AH", cmdRegMR: "REG_MR", cmdReregMR: "REREG_MR",
	cmdDeregMR: "DEREG_MR", cmdAllocMW: "ALLOC_MW", cmdDeallocMW: "DEALLOC_MW",
	cmdCreateCompChannel: "CREATE_COMP_CHANNEL", cmdCreateCQ: "CREATE_CQ", cmdResizeCQ: "RESIZE_CQ",
	cmdDestroyCQ: "DESTROY_CQ", cmdReqNotifyCQ: "REQ_NOTIFY_CQ", cmdCreateQP: "CREATE_QP",
	cmdQueryQP: "QUERY_QP", cmdModifyQP: "MODIFY_QP", cmdDestroyQP: "DESTROY_QP", cmdPostSend: "POST_SEND",
	cmdCreateSRQ: "CREATE_SRQ", cmdModifySRQ: "MODIFY_SRQ", cmdQuerySRQ: "QUERY_SRQ", cmdDestroySRQ: "DESTROY_SRQ",
}

// String names the command as the header does.
func (c command) String() string { return commandNames[c] }

// request is a command and its parts. in is the structure of the header with
// the address of the answer, if it has one, left 0; out is the answer. The
// driver's parts come behind both.
type request struct {
	cmd      command
	in, out  []byte
	extraIn  []byte
	extraOut []byte
}

// The parts of a page. The write interface wants the driver's parts right
// behind the core's, and the ioctl interface takes them anywhere.
const (
	pageAttrs = 0    // the ioctl header and attributes, or the write header before pageIn
	pageIn    = 512  // in, extraIn
	pageOut   = 2048 // out, extraOut
)
