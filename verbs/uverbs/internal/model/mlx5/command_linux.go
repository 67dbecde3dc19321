//go:build amd64 || arm64

package mlx5

import (
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

const getContext = 0

// commands by number (include/uapi/rdma/ib_user_verbs.h). Structs are those of that header and,
// for the provider's part, of mlx5-abi.h. The checks are cited where they are made: files
// without a directory are those of drivers/infiniband/hw/mlx5, uverbs_cmd.c is the core's. A
// function alone is of the file that another comment of the package names with it.
var commands = map[uint32]func(*ucontext, *frame.Request) unix.Errno{
	getContext: (*ucontext).getContext,
	1:          (*ucontext).queryDevice,
	2:          (*ucontext).queryPort,
	3:          (*ucontext).allocPD,
	4:          (*ucontext).deallocPD,
	5:          (*ucontext).createAH,
	8:          (*ucontext).destroyAH,
	9:          (*ucontext).regMR,
	11:         (*ucontext).reregMR,
	13:         (*ucontext).deregMR,
	14:         (*ucontext).allocMW,
	16:         (*ucontext).deallocMW,
	17:         (*ucontext).createChannel,
	18:         (*ucontext).createCQ,
	19:         (*ucontext).resizeCQ,
	20:         (*ucontext).destroyCQ,
	24:         (*ucontext).createQP,
	25:         (*ucontext).queryQP,
	26:         (*ucontext).modifyQP,
	27:         (*ucontext).destroyQP,
	30:         (*ucontext).attachMulticast,
	31:         (*ucontext).detachMulticast,
	32:         (*ucontext).createSRQ,
	33:         (*ucontext).modifySRQ,
	34:         (*ucontext).querySRQ,
	35:         (*ucontext).destroySRQ,
	37:         (*ucontext).openDomain,
	38:         (*ucontext).closeDomain,
	39:         (*ucontext).createDomainSRQ,
	40:         (*ucontext).openQP,
}

// destroyCommands are those that the kernel carries out after the device was removed too.
var destroyCommands = map[uint32]bool{4: true, 8: true, 13: true, 16: true, 20: true, 27: true, 35: true, 38: true}

// extendedCommands are those of the second generation.
var extendedCommands = map[uint32]func(*ucontext, *frame.Request) unix.Errno{
	1:  (*ucontext).queryDeviceEx,
	57: (*ucontext).modifyCQ,
}
