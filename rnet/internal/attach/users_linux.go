package attach

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// defaultOverflowUID stands for users that a user namespace has no number for,
// unless /proc/sys/kernel/overflowuid names another.
const defaultOverflowUID = 65534

// knownUser reports whether SO_PEERCRED tells a user from all others. It does
// not for the overflow user of a user namespace that lacks numbers for others.
func knownUser(uid int) bool {
	overflow := defaultOverflowUID
	if text, err := os.ReadFile("/proc/sys/kernel/overflowuid"); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			overflow = n
		}
	}
	if uid != overflow {
		return true
	}
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && allUsers(string(text))
}

// allUsers reports whether a uid_map has a number for each user, as that of
// the first user namespace has.
func allUsers(uidMap string) bool {
	return slices.Equal(strings.Fields(uidMap), []string{"0", "0", "4294967295"})
}
