//go:build linux

package soft_test

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
	"golang.org/x/sys/unix"
)

func TestMemoryIsClosedAtTheLimitOfMappings(t *testing.T) {
	runAlone(t, "close-at-mappings' limit")
}

// closeAtLimitOfMappings frees memory while the process has as many mappings
// as the kernel allows: to take one out of the middle of others takes one
// more.
func closeAtLimitOfMappings() error {
	e, err := makeEnd(usual)
	if err != nil {
		return err
	}
	const count, size = 64, 1 << 20
	var mrs [count]*verbs.MR
	var mem [count][]byte
	for i := range mrs {
		if mrs[i], err = e.pd.AllocMR(size, verbs.AccessLocalWrite, verbs.MROptions{}); err != nil {
			return err
		}
		mem[i] = mrs[i].Bytes()
		// an emulator gives no pages ahead of use
		for at := 0; at < size; at += unix.Getpagesize() {
			mem[i][at] = 1
		}
	}
	qp, err := e.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: e.send, RecvCQ: e.recv, Cap: usual.cap})
	if err != nil {
		return err
	}
	runtime.GC()
	debug.SetGCPercent(-1) // the collector needs mappings too, and ends the process without
	ground, err := takeAllMappings()
	if err != nil {
		return err
	}
	var failed error
	for i := 1; i < count; i += 2 {
		failed = errors.Join(failed, mrs[i].Close())
	}
	failed = errors.Join(failed, qp.Close())
	late := soft.MappingsLeft()
	var left int
	for i := 0; i < count; i++ {
		pages, err := residentPages(mem[i])
		failed = errors.Join(failed, err)
		if i%2 == 1 {
			left += pages
		} else if pages != size/unix.Getpagesize() {
			failed = errors.Join(failed, fmt.Errorf("%d pages are left of memory in use", pages))
		}
	}
	if err := errors.Join(failed, unix.Munmap(ground)); err != nil {
		return err
	}
	if late == 0 {
		return errors.New("the limit was not felt")
	}
	if left > 0 {
		return fmt.Errorf("%d pages are resident of closed memory", left)
	}
	for i := 0; i < count; i += 2 { // takes along what could not go
		if err := mrs[i].Close(); err != nil {
			return err
		}
	}
	if left := soft.MappingsLeft(); left != 0 {
		return fmt.Errorf("%d mappings are left", left)
	}
	return e.close()
}

// takeAllMappings makes mappings until the kernel allows hardly one more.
func takeAllMappings() ([]byte, error) {
	const spare = 8 // for the runtime
	ground, err := unix.Mmap(-1, 0, 1<<30, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	page := unix.Getpagesize()
	at := 0
	for ; at < len(ground) && err == nil; at += 2 * page {
		err = unix.Mprotect(ground[at:at+page], unix.PROT_READ)
	}
	if !errors.Is(err, unix.ENOMEM) {
		return nil, fmt.Errorf("the limit of mappings did not come: %w", err)
	}
	return ground, unix.Mprotect(ground[at-2*spare*page:at], unix.PROT_NONE)
}

// residentPages returns how many pages of a mapping there are, if it is one.
func residentPages(mem []byte) (n int, err error) {
	pages, err := soft.PagesOfMapping(mem)
	switch {
	case errors.Is(err, unix.ENOMEM): // not mapped
		return 0, nil
	case err != nil:
		return 0, err
	}
	for _, p := range pages {
		n += int(p & 1)
	}
	return n, nil
}
