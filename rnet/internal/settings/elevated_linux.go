package settings

import (
	"os"

	"golang.org/x/sys/unix"
)

// withoutWait has the open of a pipe not wait for who writes to it.
const withoutWait = unix.O_NONBLOCK | unix.O_NOCTTY

// elevated reports whether the program has rights that its caller has not: by set-user-ID,
// set-group-ID, or capabilities of its file, as the kernel says itself (AT_SECURE).
func elevated() bool {
	const secure = 23 // AT_SECURE of linux/auxvec.h
	vector, err := unix.Auxv()
	if err != nil {
		return os.Getuid() != os.Geteuid() || os.Getgid() != os.Getegid()
	}
	for _, entry := range vector {
		if entry[0] == secure {
			return entry[1] != 0
		}
	}
	return false
}
