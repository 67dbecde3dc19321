//go:build amd64 || arm64

package frame

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Process is the memory of a running program.
type Process struct {
	pid int
}

// ProcessOf returns the process of a thread: memory has to be reachable when the
// thread that made a system call has ended. A process may be this one.
func ProcessOf(thread int) *Process {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(thread) + "/status")
	if err == nil {
		if _, rest, ok := bytes.Cut(status, []byte("\nTgid:\t")); ok {
			line, _, _ := bytes.Cut(rest, []byte("\n"))
			if pid, err := strconv.Atoi(string(line)); err == nil {
				return &Process{pid}
			}
		}
	}
	return &Process{thread}
}

// PID returns the number of the process.
func (p *Process) PID() int { return p.pid }

// has says whether the process has a descriptor of a number.
func (p *Process) has(number int) bool {
	_, err := os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", p.pid, number))
	return err == nil
}

// File says which file a descriptor of the process is, by device and inode. It is
// false if there is none.
func (p *Process) File(number int) (id [2]uint64, ok bool) {
	var s unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d/fd/%d", p.pid, number), &s) != nil {
		return id, false
	}
	return [2]uint64{s.Dev, s.Ino}, true
}

// DMABuf says whether a descriptor of the process is of a DMA buffer (drivers/dma-buf/dma-buf.c,
// dmabuffs_dname). It is not ok if there is none.
func (p *Process) DMABuf(number int) (is, ok bool) {
	name, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", p.pid, number))
	return strings.HasPrefix(name, "/dmabuf:"), err == nil
}

// Read fills b from the process's memory. Not all of it readable is an error.
func (p *Process) Read(addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	remote := []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}
	n, err := unix.ProcessVMReadv(p.pid, local, remote, 0)
	return completed("read", addr, n, len(b), err)
}

// Write copies b to the process's memory, in ascending order of addresses only as far
// as a copy of the processor's is.
func (p *Process) Write(addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	remote := []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}
	n, err := unix.ProcessVMWritev(p.pid, local, remote, 0)
	return completed("write", addr, n, len(b), err)
}

// WriteLast copies b to the process's memory, its last byte after all others: a thread
// that sees the last byte sees them all.
func (p *Process) WriteLast(addr uint64, b []byte) error {
	last := len(b) - 1
	local := []unix.Iovec{{Base: &b[0], Len: uint64(last)}, {Base: &b[last], Len: 1}}
	remote := []unix.RemoteIovec{{Base: uintptr(addr), Len: last}, {Base: uintptr(addr) + uintptr(last), Len: 1}}
	n, err := unix.ProcessVMWritev(p.pid, local, remote, 0)
	return completed("write", addr, n, len(b), err)
}

// ReadWords reads the 8 bytes at each address into the element of words with its
// index, with few system calls.
func (p *Process) ReadWords(addrs []uint64, words []uint64) error {
	const most = 512 // the kernel takes 1024 segments
	remote := make([]unix.RemoteIovec, 0, min(len(addrs), most))
	for len(addrs) > 0 {
		n := min(len(addrs), most)
		remote = remote[:0]
		for _, a := range addrs[:n] {
			remote = append(remote, unix.RemoteIovec{Base: uintptr(a), Len: 8})
		}
		local := []unix.Iovec{{Base: (*byte)(unsafe.Pointer(&words[0])), Len: uint64(n * 8)}}
		got, err := unix.ProcessVMReadv(p.pid, local, remote, 0)
		if err := completed("read", addrs[0], got, n*8, err); err != nil {
			return err
		}
		addrs, words = addrs[n:], words[n:]
	}
	return nil
}

// path reads a C string of at most 4095 bytes.
func (p *Process) path(addr uint64) string {
	const page = 4096
	var path []byte
	for len(path) < page {
		chunk := make([]byte, page-addr%page)
		if p.Read(addr, chunk) != nil {
			return ""
		}
		if end := bytes.IndexByte(chunk, 0); end >= 0 {
			return string(append(path, chunk[:end]...))
		}
		path = append(path, chunk...)
		addr += uint64(len(chunk))
	}
	return ""
}

func completed(what string, addr uint64, n, want int, err error) error {
	if err == nil && n != want {
		err = unix.EFAULT // the model reaches a part of it alone
	}
	if err != nil {
		return fmt.Errorf("%s %d bytes at %#x of the program's memory: %w", what, want, addr, err)
	}
	return nil
}
