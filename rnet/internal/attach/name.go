// Package attach lets other processes of the same user read what this one
// tells of itself, and reads what they tell. docs/observability.md says who
// can do what.
package attach

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Rest is how long an endpoint rests after it has refused somebody, who may
// come again at once, and how long a reader does who has found ErrBusy.
const Rest = 10 * time.Millisecond

// prefix is the beginning of the names of all endpoints, as /proc/net/unix
// shows them: the leading NUL of an abstract name is an @ there. The number is
// the version of what is read.
const prefix = "@ramjet/stats1/"

// nonceLen is how many hexadecimal digits end a name. They keep others from
// taking it first.
const nonceLen = 16

// name returns the name of an endpoint.
func name(uid, pid int, nonce [nonceLen / 2]byte) string {
	return fmt.Sprintf("%s%d/%d/%x", prefix, uid, pid, nonce)
}

// parseName takes a name apart. Anybody can have made it.
func parseName(text string) (uid, pid int, ok bool) {
	rest, ok := strings.CutPrefix(text, prefix)
	if !ok {
		return 0, 0, false
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 3 || len(parts[2]) != nonceLen || strings.Trim(parts[2], "0123456789abcdef") != "" {
		return 0, 0, false
	}
	uid, okUID := parseNumber(parts[0])
	pid, okPID := parseNumber(parts[1])
	return uid, pid, okUID && okPID
}

// parseNumber takes what strconv.Itoa makes of an id, and nothing else.
func parseNumber(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 32)
	return int(n), err == nil && text == strconv.FormatUint(n, 10)
}
