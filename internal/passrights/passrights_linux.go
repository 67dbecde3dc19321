// Package passrights keeps descriptors off a Unix socket, by the socket option SO_PASSRIGHTS of
// Linux 6.16.
package passrights

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// soPassRights is SO_PASSRIGHTS: with 0, who sends descriptors gets EPERM. It is on in
// new sockets.
const soPassRights = 83

// Missing has Set do as on a kernel without the option, for tests.
var Missing atomic.Bool

// Set sets the option of a socket, and reports whether the kernel has it.
func Set(fd, on int) bool {
	return !Missing.Load() && unix.SetsockoptInt(fd, unix.SOL_SOCKET, soPassRights, on) == nil
}
