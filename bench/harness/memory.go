package harness

import (
	"bufio"
	"bytes"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
)

// readMemory collects garbage and fills in what memory this process holds.
func readMemory(r *reply) {
	// The second collection frees what the first one's finalizers let go, and
	// FreeOSMemory makes the resident size follow.
	runtime.GC()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	r.Heap, r.Stack = m.HeapAlloc, m.StackInuse
	r.Resident, r.Whole = residentBytes()
	r.Files = openFiles()
}

// residentBytes is what of this process is in memory: its proportional set
// size, in which a page that several processes map is divided by their number,
// and its resident set size, in which it is whole. The sum of the first over
// both processes counts shared memory once. Both are 0 where there is no
// /proc/self/smaps_rollup (proc(5)).
func residentBytes() (proportional, whole uint64) {
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		return 0, 0
	}
	return parseRollup(text, "Pss:"), parseRollup(text, "Rss:")
}

func parseRollup(text []byte, key string) uint64 {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		value, ok := bytes.CutPrefix(lines.Bytes(), []byte(key))
		if !ok {
			continue
		}
		kib, err := strconv.ParseUint(string(bytes.TrimSpace(bytes.TrimSuffix(value, []byte("kB")))), 10, 64)
		if err != nil {
			return 0
		}
		return kib << 10
	}
	return 0
}

// openFiles is the number of descriptors of this process, 0 where the system
// does not tell.
func openFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries) - 1 // without the directory's own
}
