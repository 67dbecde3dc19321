//go:build amd64 || arm64

package frame

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// A Process is a running program, or was one. It is reached by descriptors and not by its number,
// which may be another process's when it has ended: then nothing of it can be reached any more, and
// nothing of the other. Its memory is that which it had when it was opened. execve gives it another
// one, and what was registered is not there.
//
// Its memory is reached whatever the protection is: a card does not know of that, and /proc/PID/mem
// passes it over. Only shared memory that is not writable cannot be written.
type Process struct {
	pid       int      // for the log, and for keys
	directory *os.File // /proc/PID
	memory    *os.File // /proc/PID/mem
	end       *os.File // a pidfd, which becomes readable
}

// openProcess opens the process of a thread. The thread must be known to live then, or be asked for
// later, before the process is used.
func openProcess(thread int) (*Process, error) {
	p, err := openDirectory(group(thread))
	if err != nil {
		return nil, err
	}
	end, err := unix.PidfdOpen(p.pid, 0)
	if err == nil {
		if err = unix.SetNonblock(end, true); err != nil {
			_ = unix.Close(end)
		} else {
			p.end = os.NewFile(uintptr(end), "pidfd") // non-blocking: waited for by the netpoller
			// The thread's, because the first of a process may have ended before the others.
			p.memory, err = p.open(fmt.Sprintf("task/%d/mem", thread), unix.O_RDWR)
		}
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("process %d: %w", p.pid, err)
	}
	return p, nil
}

// openMemory opens the memory of a thread, without what tells of the end of its process.
func openMemory(thread int) (*Process, error) {
	p, err := openDirectory(thread)
	if err == nil {
		if p.memory, err = p.open("mem", unix.O_RDWR); err != nil {
			p.close()
		}
	}
	return p, err
}

// openDirectory opens what /proc has of a process, or of a thread.
func openDirectory(number int) (*Process, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d", number), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", number, err)
	}
	return &Process{pid: number, directory: os.NewFile(uintptr(fd), "process")}, nil
}

// Self returns this process.
func Self() *Process { return self() }

var self = sync.OnceValue(func() *Process {
	p, err := openProcess(os.Getpid())
	if err != nil {
		return &Process{} // nothing of it can be reached
	}
	return p
})

// group returns the number of the process that a thread is of, or 0 if there is none.
func group(thread int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(status, []byte("\nTgid:\t"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	pid, _ := strconv.Atoi(string(line))
	return pid
}

// close closes the descriptors. What is asked of the process then is an error.
func (p *Process) close() {
	for _, f := range []*os.File{p.directory, p.memory, p.end} {
		_ = f.Close() // also of nil
	}
}

// awaitEnd returns when the process has ended. It is false if it was closed before.
func (p *Process) awaitEnd() bool {
	end, err := p.end.SyscallConn()
	if err != nil {
		return false
	}
	return end.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || err != nil && err != unix.EINTR
	}) == nil
}

// runs says whether a thread is one of the process, and runs in the memory that was opened.
func (p *Process) runs(thread int) bool {
	// There is nothing at address 0. Without a process that has the memory, that is its end.
	if _, err := p.memory.ReadAt(make([]byte, 1), 0); err == io.EOF || errors.Is(err, os.ErrClosed) {
		return false
	}
	return p.stat(fmt.Sprintf("task/%d", thread), &unix.Stat_t{}, 0) == nil
}

// inDirectory runs a function with the descriptor of /proc/PID.
func (p *Process) inDirectory(do func(directory int) error) error {
	c, err := p.directory.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = c.Control(func(fd uintptr) { failed = do(int(fd)) })
	return errors.Join(err, failed)
}

// open opens a file of /proc/PID.
func (p *Process) open(name string, flags int) (f *os.File, err error) {
	err = p.inDirectory(func(directory int) error {
		fd, err := unix.Openat(directory, name, flags|unix.O_CLOEXEC, 0)
		if err == nil {
			f = os.NewFile(uintptr(fd), name)
		}
		return err
	})
	return f, err
}

func (p *Process) stat(name string, s *unix.Stat_t, flags int) error {
	return p.inDirectory(func(directory int) error { return unix.Fstatat(directory, name, s, flags) })
}

// has says whether the process has a descriptor of a number.
func (p *Process) has(number int) bool {
	return p.stat(fmt.Sprintf("fd/%d", number), &unix.Stat_t{}, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// File says which file a descriptor of the process is, by device and inode. It is
// false if there is none.
func (p *Process) File(number int) (id [2]uint64, ok bool) {
	var s unix.Stat_t
	if p.stat(fmt.Sprintf("fd/%d", number), &s, 0) != nil {
		return id, false
	}
	return [2]uint64{s.Dev, s.Ino}, true
}

// DMABuf says whether a descriptor of the process is of a DMA buffer (drivers/dma-buf/dma-buf.c,
// dmabuffs_dname). It is not ok if there is none.
func (p *Process) DMABuf(number int) (is, ok bool) {
	name := make([]byte, unix.PathMax)
	err := p.inDirectory(func(directory int) error {
		n, err := unix.Readlinkat(directory, fmt.Sprintf("fd/%d", number), name)
		name = name[:max(n, 0)]
		return err
	})
	return bytes.HasPrefix(name, []byte("/dmabuf:")), err == nil
}

// Readable says whether all of a range of memory is there, and the process may read it.
func (p *Process) Readable(addr, size uint64) bool { return p.permits(addr, size, 'r') }

// Writable says whether all of a range of memory is there, and the process may write to it.
func (p *Process) Writable(addr, size uint64) bool { return p.permits(addr, size, 'w') }

// permits says whether the mappings of a range, which has no gaps, have a permission.
func (p *Process) permits(addr, size uint64, permission byte) bool {
	f, err := p.open("maps", unix.O_RDONLY)
	if err != nil {
		return false
	}
	defer f.Close()
	maps, err := io.ReadAll(f)
	if err != nil || size == 0 || addr+size < addr {
		return false
	}
	next := addr
	for line := range strings.Lines(string(maps)) { // in ascending order: 5581a0000000-5581a0021000 rw-p ...
		area, rest, _ := strings.Cut(line, " ")
		from, to, _ := strings.Cut(area, "-")
		start, startErr := strconv.ParseUint(from, 16, 64)
		end, endErr := strconv.ParseUint(to, 16, 64)
		switch permissions, _, _ := strings.Cut(rest, " "); {
		case startErr != nil || endErr != nil:
			return false
		case end <= next:
			continue
		case start > next || strings.IndexByte(permissions, permission) < 0:
			return false
		}
		if next = end; next >= addr+size {
			return true
		}
	}
	return false
}

// Read fills b from the process's memory. Not all of it readable is an error.
func (p *Process) Read(addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	_, err := p.memory.ReadAt(b, int64(addr))
	return reached("read", addr, len(b), err)
}

// Write copies b to the process's memory, in ascending order of addresses only as far
// as a copy of the processor's is.
func (p *Process) Write(addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	_, err := p.memory.WriteAt(b, int64(addr))
	return reached("write", addr, len(b), err)
}

// Answer copies b as the kernel does to the caller of a system call (copy_to_user): not where the
// process itself may not write.
func (p *Process) Answer(addr uint64, b []byte) error {
	if len(b) > 0 && !p.Writable(addr, uint64(len(b))) {
		return reached("write", addr, len(b), unix.EFAULT) // include/linux/uaccess.h, copy_to_user
	}
	return p.Write(addr, b)
}

// WriteLast copies b to the process's memory, its last byte after all others: a thread
// that sees the last byte sees them all.
func (p *Process) WriteLast(addr uint64, b []byte) error {
	last := len(b) - 1
	if err := p.Write(addr, b[:last]); err != nil {
		return err
	}
	return p.Write(addr+uint64(last), b[last:])
}

// ReadWords reads the 8 bytes at each address into the element of words with its index. Those in
// the same page that follow each other take one system call.
func (p *Process) ReadWords(addrs []uint64, words []uint64) error {
	const size = 4096
	var page [size]byte
	at := uint64(1) // where the page is that was read: none yet
	for i, addr := range addrs {
		b := page[addr%size:]
		switch start := addr - addr%size; {
		case len(b) < 8: // in two pages
			b = make([]byte, 8)
			if err := p.Read(addr, b); err != nil {
				return err
			}
		case start != at:
			if err := p.Read(start, page[:]); err != nil {
				return err
			}
			at = start
		}
		words[i] = le.Uint64(b)
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

func reached(what string, addr uint64, size int, err error) error {
	if err != nil {
		return fmt.Errorf("%s %d bytes at %#x of the program's memory: %w", what, size, addr, err)
	}
	return nil
}
