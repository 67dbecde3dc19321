//go:build linux

package soft_test

import (
	"errors"
	"fmt"
	"os"
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
	for i := range mrs {
		if mrs[i], err = e.pd.AllocMR(size, verbs.AccessLocalWrite, verbs.MROptions{}); err != nil {
			return err
		}
	}
	qp, err := e.pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: e.send, RecvCQ: e.recv, Cap: usual.cap})
	if err != nil {
		return err
	}
	runtime.GC()
	debug.SetGCPercent(-1) // the collector needs mappings too, and ends the process without
	before, err := residentPages()
	if err != nil {
		return err
	}
	ground, err := takeAllMappings()
	if err != nil {
		return err
	}
	var failed error
	for i := 1; i < count; i += 2 {
		failed = errors.Join(failed, mrs[i].Close())
	}
	failed = errors.Join(failed, qp.Close())
	freed, err := residentPages()
	late := soft.MappingsLeft()
	if err := errors.Join(failed, err, unix.Munmap(ground)); err != nil {
		return err
	}
	if late == 0 {
		return errors.New("the limit was not felt")
	}
	if want := before - count/2*size/unix.Getpagesize()*3/4; freed > want {
		return fmt.Errorf("%d pages are resident of %d: closed memory is not free", freed, before)
	}
	if err := mrs[0].Close(); err != nil { // takes along what could not go
		return err
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

func residentPages() (int, error) {
	var size, resident int
	statm, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(statm), &size, &resident)
	}
	return resident, err
}
