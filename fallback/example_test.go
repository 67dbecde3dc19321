package fallback_test

import (
	"fmt"
	"os"
	"syscall"

	"github.com/seed-b9b531af/ramjet/fallback"
)

func ExampleClassify() {
	err := os.NewSyscallError("memfd_create", syscall.EPERM)
	fmt.Println(fallback.Classify(err))

	reason := fallback.Classify(fallback.Because(fallback.MemfdForbidden, err))
	fmt.Println(reason)
	fmt.Println(reason.Meaning())
	fmt.Println(reason.Remedy())
	// Output:
	// permission
	// memfd-forbidden
	// the system or a sandbox forbids memfd_create
	// Allow memfd_create in the seccomp profile of the container or service.
}
