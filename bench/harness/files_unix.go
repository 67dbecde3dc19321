//go:build unix

package harness

import (
	"fmt"
	"syscall"
)

// allowFiles raises the limit of open files (getrlimit(2), RLIMIT_NOFILE) to n
// if it is lower. Otherwise it returns what the limit is.
func allowFiles(n int) (has uint64, err error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read RLIMIT_NOFILE: %w", err)
	}
	// Go has raised the soft limit to the hard one, and does so in each of the
	// processes that we start.
	if has = uint64(limit.Max); has >= uint64(n) {
		return has, nil
	}
	raised := limit
	setBoth(&raised.Cur, &raised.Max, n)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &raised); err != nil {
		return has, fmt.Errorf("raise RLIMIT_NOFILE: %w", err)
	}
	return uint64(n), nil
}

// setBoth sets fields whose type differs by system.
func setBoth[T int64 | uint64](soft, hard *T, n int) { *soft, *hard = T(n), T(n) }
