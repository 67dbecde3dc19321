package main

import (
	"bufio"
	"bytes"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
)

// weighProcess collects garbage and fills in what memory this process holds.
func weighProcess(r *reply) {
	// The second collection frees what the first one's finalizers let go, and
	// FreeOSMemory makes the resident size follow.
	runtime.GC()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	r.Heap, r.Stack = m.HeapAlloc, m.StackInuse
	r.Resident = residentBytes()
}

// residentBytes is the proportional set size of this process: every resident
// page, one that several processes map divided by their number. The sum over
// both processes counts shared memory once. It is 0 where there is no
// /proc/self/smaps_rollup (proc(5)).
func residentBytes() uint64 {
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		return 0
	}
	return parsePss(text)
}

func parsePss(text []byte) uint64 {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		value, ok := bytes.CutPrefix(lines.Bytes(), []byte("Pss:"))
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
