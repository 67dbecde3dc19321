//go:build !linux

package settings

import "os"

// withoutWait is for systems where an open can be told not to wait.
const withoutWait = 0

// elevated reports whether the program has rights that its caller has not.
func elevated() bool { return os.Getuid() != os.Geteuid() || os.Getgid() != os.Getegid() }
