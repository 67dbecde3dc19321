package differential

import (
	"slices"
	"strings"
)

// difference is one that docs/differences.md lists.
type difference struct {
	name string // as in the table there
	// found says whether a call shows it; nil where no sequence does.
	found func(tcp, soft event, of runs) bool
}

// listed are all there are. A test compares their names with the table.
var listed = []difference{
	// Whoever comes first is told of a reset: a Read in the place of a Write, or the
	// other way round, changes what both return.
	{"Read after a reset", func(tcp, soft event, of runs) bool {
		end := func(e event) bool { return e.End == soft.End && strings.Contains(e.Err, "ECONNRESET") }
		if !slices.ContainsFunc(of.tcp, end) || !slices.ContainsFunc(of.soft, end) {
			return false
		}
		if tcp.kind() == reads {
			return (tcp.Err == "EOF" || tcp.Op == "WriteTo" && tcp.Err == "") && strings.Contains(soft.Err, "ECONNRESET")
		}
		later := func(e event) string { return strings.ReplaceAll(e.Err, "ECONNRESET", "EPIPE") }
		return later(tcp) == later(soft) && of.atOnce(soft)
	}},
	{"A process ends without Close", func(tcp, soft event, of runs) bool {
		return hasAny(soft.Err, "ECONNRESET", "EPIPE", "ENOTCONN") && slices.ContainsFunc(of.soft, func(e event) bool {
			return e.End != soft.End && (e.Op == "Exit" || e.Op == "Kill")
		})
	}},
	{name: "A Write while the peer closes"},
	{"net.Buffers", func(tcp, soft event, _ runs) bool {
		if strings.ReplaceAll(tcp.Err, "writev", "write") == soft.Err && tcp.N == soft.N {
			return tcp.Op == "Buffers"
		}
		// There are three pieces. The answer to the first may come before the second or
		// before the third.
		some := soft.N == tcp.N/3 || soft.N == 2*tcp.N/3
		return tcp.Op == "Buffers" && tcp.Err == "" && some && strings.Contains(soft.Err, "EPIPE")
	}},
	{"ReadFrom", func(tcp, soft event, _ runs) bool {
		const first = 4 << 10
		return soft.Op == "ReadFrom" && soft.N == first && tcp.N > first && strings.Contains(soft.Err, "EPIPE")
	}},
	{name: "Buffers"},
	{name: "A connection that is dropped without Close"},
	{name: "Type"},
	{name: "SyscallConn"},
	{name: "File"},
	{name: "Socket options"},
	{name: "Close over a network"},
	{name: "Close of more connections than the peer takes in"},
	{name: "Tools"},
	{name: "Ports of the dialing side"},
	{name: "Names of hosts"},
	{name: "Backlog"},
	{name: "A thread in another network namespace (setns, unshare)"},
	{name: "Several listeners at one port (SO_REUSEPORT)"},
	{name: "Listeners that close one after the other while a dial is under way"},
	{name: "Close of a listener that is handed over"},
	{name: "Goroutines"},
}

// runs are the two runs of a sequence.
type runs struct{ tcp, soft []event }

// atOnce reports whether a Read at the same end was told of the reset that e could
// have been told of, because both waited.
func (r runs) atOnce(e event) bool {
	return slices.ContainsFunc(r.soft, func(o event) bool {
		return o.End == e.End && o.kind() == reads && strings.Contains(o.Err, "ECONNRESET")
	})
}

// compare returns the first event in which the two differ, -1 if there is none, other
// than by what is listed.
func (r runs) compare() int {
	for i := range r.tcp {
		if i >= len(r.soft) {
			return i
		}
		if r.tcp[i] != r.soft[i] && !r.listed(i) {
			return i
		}
	}
	return -1
}

func (r runs) listed(i int) bool {
	return slices.ContainsFunc(listed, func(d difference) bool {
		return d.found != nil && d.found(r.tcp[i], r.soft[i], r)
	})
}

func hasAny(text string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(text, p) })
}
