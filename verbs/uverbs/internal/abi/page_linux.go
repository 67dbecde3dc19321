package abi

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// A command page is memory for one command at a time: commands hold addresses of
// their parts and of the answer as numbers, which the garbage collector does
// not see, so the memory must be such that it never moves and stays mapped. Its
// size is that of the layout, whatever the machine's pages are.
const commandPageSize = 4096

// pagesKept is how many pages wait for the next command.
const pagesKept = 8

var pages struct {
	sync.Mutex
	free [][]byte // guarded by the mutex
}

// TakePage returns a page of zeros.
func TakePage() ([]byte, error) {
	pages.Lock()
	if n := len(pages.free); n > 0 {
		p := pages.free[n-1]
		pages.free = pages.free[:n-1]
		pages.Unlock()
		clear(p)
		return p, nil
	}
	pages.Unlock()
	p, err := unix.Mmap(-1, 0, commandPageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map memory for a command: %w", err)
	}
	return p, nil
}

// ReturnPage gives a page of TakePage back.
func ReturnPage(p []byte) {
	pages.Lock()
	defer pages.Unlock()
	if len(pages.free) < pagesKept {
		pages.free = append(pages.free, p)
		return
	}
	_ = unix.Munmap(p) // fails only for memory that is not mapped
}
