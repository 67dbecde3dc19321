//go:build amd64 || arm64

package frame

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Node is a character device of a host.
type Node struct {
	Major, Minor uint32
	// Pages is the size of what a program can map of it, in bytes.
	Pages int
	// Driver is what ioctls have to name (enum rdma_driver_id).
	Driver uint32
	// Methods are what it knows of the ioctl interface, besides INVOKE_WRITE.
	Methods Methods
	// Open is called for each open, with the pages of the new file, which are zero.
	// It may be called by several goroutines.
	Open func(pages []byte) (File, error)
	// OpenMessages is called instead of Open if it is not nil.
	OpenMessages func(*EventCount) (MessageFile, error)
}

// A File is an open device node. Its calls come one at a time.
type File interface {
	// Command carries out a uverbs command and returns its errno, 0 for success.
	Command(*Request) unix.Errno
	// Call carries out a method of the ioctl interface.
	Call(*Call) unix.Errno
	// Map says with which errno a program may not map something of the file. Otherwise it
	// gets the pages at that offset.
	Map(Mapping) unix.Errno
	// Close is called when the process that opened it has closed its descriptor or has ended.
	Close()
}

// A Mapping is what a program asks for of mmap.
type Mapping struct {
	Offset, Length uint64
	Protection     int // unix.PROT_*
	Flags          int // unix.MAP_*
}

// A Host is a machine as its programs see it.
type Host struct {
	// Nodes are its devices, by absolute path.
	Nodes map[string]Node
	// Sysfs are its files below /sys/class/infiniband and /sys/class/infiniband_verbs,
	// by path from /sys/class, with their contents, to which a newline is added.
	Sysfs map[string]string
	// Links are symbolic links there, with where they lead to.
	Links map[string]string
	// WriteOnly makes the device refuse ioctl, as kernels before 5.0 did.
	WriteOnly bool
	// Log, if not nil, is called for each command.
	Log func(format string, args ...any)

	// ended, if not nil, is called when the end of a process was noticed, before what it has left
	// is closed: for tests.
	ended func(*Program)
}

// A Program runs on a host.
type Program struct {
	host     *Host
	sysfs    string // where the files of the host are
	command  *exec.Cmd
	ended    chan struct{} // closed when the command has ended
	listener int
	served   chan struct{} // closed when there will be no notification any more

	mu      sync.Mutex
	files   map[descriptor]*openFile // guarded by mu
	watches sync.WaitGroup           // of ends of the files' owners
}

// A descriptor is a number in a process. A program may be several processes.
//
// The model is not told of all that ends its meaning: the process may have ended, and its number be
// another's, or it has closed the descriptor by execve. So there may be a file that was the
// descriptor's once. [Program.find] asks for its owner.
type descriptor struct{ pid, number int }

type openFile struct {
	owner *Process // closed with the file
	node  Node

	mu     sync.Mutex // the file's commands
	closed bool       // guarded by mu

	// Of nodes with pages:
	file  File
	pages []byte
	memfd int

	// Of nodes with messages:
	messages MessageFile
	count    *EventCount
	waiting  []*Message // guarded by mu
}

// An outcome says who answers a system call.
type outcome int

const (
	byKernel outcome = iota
	answered
	later
)

// Start runs a program, found in PATH, with the environment of this one and what is in
// env. The caller calls Wait.
func (h *Host) Start(args, env []string, stdout, stderr io.Writer) (*Program, error) {
	p := &Program{host: h, served: make(chan struct{}), ended: make(chan struct{}), files: map[descriptor]*openFile{}}
	var err error
	if p.sysfs, err = h.makeSysfs(); err != nil {
		return nil, err
	}
	if err := p.start(args, env, stdout, stderr); err != nil {
		_ = os.RemoveAll(p.sysfs)
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	go p.serve()
	return p, nil
}

func (p *Program) start(args, env []string, stdout, stderr io.Writer) error {
	sockets, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(sockets[0])
	theirs := os.NewFile(uintptr(sockets[1]), "listener")
	p.command = exec.Command("/proc/self/exe", args...)
	p.command.Args[0] = childName
	p.command.Env = append(os.Environ(), env...)
	p.command.Stdout, p.command.Stderr = stdout, stderr
	p.command.ExtraFiles = []*os.File{theirs}
	err = p.startCommand()
	_ = theirs.Close()
	if err != nil {
		return err
	}
	if p.listener, err = receiveListener(sockets[0]); err != nil {
		err = errors.Join(err, p.command.Wait())
		close(p.ended)
		return err
	}
	return nil
}

// startCommand starts it from a thread that stays: becomeProgram has the program killed when its
// parent ends, for which the kernel takes the end of that thread.
func (p *Program) startCommand() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.command.Start()
		started <- err
		if err == nil {
			<-p.ended // ends with Wait
		}
	}()
	return <-started
}

// Kill ends the program.
func (p *Program) Kill() { _ = p.command.Process.Kill() }

// Wait waits for the end of the program, and of the processes it has started, closes
// its files and returns its exit status as [exec.Cmd.Wait] does.
func (p *Program) Wait() error {
	err := p.command.Wait()
	close(p.ended)
	<-p.served // ends with the last process that has the filter
	p.watches.Wait()
	_ = unix.Close(p.listener)
	_ = os.RemoveAll(p.sysfs)
	return err
}

func (f *openFile) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.closed = true
	defer f.owner.close()
	if f.messages != nil {
		f.messages.Close()
		f.count.close()
		// Calls that wait have the file still, as in the kernel, and
		// end with their process.
		f.waiting = nil
		return
	}
	f.file.Close()
	_ = unix.Munmap(f.pages)
	_ = unix.Close(f.memfd)
}

// makeSysfs writes the host's files to a directory of their own.
func (h *Host) makeSysfs() (string, error) {
	dir, err := os.MkdirTemp("", "model-sysfs")
	if err != nil {
		return "", err
	}
	files := maps.Clone(h.Sysfs)
	for name := range h.Nodes {
		files[nodeNames+"/"+path.Base(name)] = ""
	}
	for name, content := range files {
		name = filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(name, []byte(content+"\n"), 0o644); err != nil {
			return "", err
		}
	}
	for name, target := range h.Links {
		name = filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return "", err
		}
		if err := os.Symlink(target, name); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// The structs of include/uapi/linux/seccomp.h.
type notification struct {
	id    uint64
	pid   uint32
	flags uint32
	nr    int32
	arch  uint32
	ip    uint64
	args  [6]uint64
}

type response struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

type addFD struct {
	id              uint64
	flags           uint32
	from, to, fdfls uint32
}

const (
	notifReceive  = 0xc0502100
	notifSend     = 0xc0182101
	notifIDValid  = 0x40082102
	notifAddFD    = 0x40182103
	flagContinue  = 1
	flagSetNumber = 1
)

func notifIoctl(fd int, request uintptr, argument unsafe.Pointer) (int, unix.Errno) {
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument))
	return int(r), errno
}

// serve answers notifications until no process has the filter any more, which the
// listener tells by POLLHUP.
func (p *Program) serve() {
	defer close(p.served)
	for {
		poll := []unix.PollFd{{Fd: int32(p.listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err == unix.EINTR {
			continue
		} else if err != nil {
			return
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			return // POLLHUP
		}
		var n notification
		if _, errno := notifIoctl(p.listener, notifReceive, unsafe.Pointer(&n)); errno != 0 {
			continue // the caller was killed meanwhile
		}
		switch value, errno, how := p.call(&n); how {
		case byKernel:
			r := response{id: n.id, flags: flagContinue}
			_, _ = notifIoctl(p.listener, notifSend, unsafe.Pointer(&r)) // fails if the caller is gone
		case answered:
			p.answer(n.id, value, errno)
		}
	}
}

// answer ends a system call.
func (p *Program) answer(id uint64, value int64, errno unix.Errno) {
	r := response{id: id, value: value, errno: -int32(errno)}
	if errno != 0 {
		r.value = 0
	}
	_, _ = notifIoctl(p.listener, notifSend, unsafe.Pointer(&r)) // fails if the caller is gone
}

// waits says whether the caller still waits for the answer. Its number, and that of its process,
// may be another's if not: what was found out by them must not be used before waits is asked.
func (p *Program) waits(id uint64) bool {
	_, errno := notifIoctl(p.listener, notifIDValid, unsafe.Pointer(&id))
	return errno == 0
}

// call carries out a system call, or says that the kernel shall.
func (p *Program) call(n *notification) (value int64, errno unix.Errno, how outcome) {
	at := n.args[0]
	switch n.nr {
	case unix.SYS_OPENAT, sysStatAt, unix.SYS_READLINKAT, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2:
		return p.byName(n)
	case unix.SYS_MMAP:
		at = n.args[4]
	}
	f := p.find(n, at)
	if f == nil {
		return 0, 0, byKernel // another file, or the device of the process that has forked this one
	}
	switch n.nr {
	case unix.SYS_FSTAT:
		return 0, statNode(f.owner, f.node, n.args[1]), answered
	case unix.SYS_CLOSE:
		p.drop(descriptor{f.owner.pid, int(int32(at))}, f)
		return 0, 0, byKernel // the kernel closes the number
	case unix.SYS_MMAP:
		if f.messages != nil {
			return 0, unix.ENODEV, answered // mm/mmap.c, do_mmap
		}
		errno := f.use(func() unix.Errno {
			return f.file.Map(Mapping{n.args[5], n.args[1], int(n.args[2]), int(n.args[3])})
		})
		p.log(f, "mmap of %d bytes at %#x: %s", n.args[1], n.args[5], errnoName(errno))
		if errno == 0 {
			return 0, 0, byKernel
		}
		return 0, errno, answered
	case unix.SYS_WRITE:
		if f.messages != nil {
			return p.message(n, f)
		}
		value, errno := p.write(n, f)
		return value, errno, answered
	case unix.SYS_IOCTL:
		return 0, p.ioctl(n, f), answered
	}
	return 0, 0, byKernel
}

// byName carries out a system call that begins with a path.
func (p *Program) byName(n *notification) (value int64, errno unix.Errno, how outcome) {
	caller, err := openMemory(int(n.pid))
	if err != nil {
		return 0, 0, byKernel // which the model may not look at, or that is gone
	}
	defer caller.close()
	name := caller.path(n.args[1])
	if !p.waits(n.id) {
		return 0, 0, byKernel // which fails
	}
	switch n.nr {
	case unix.SYS_OPENAT:
		return p.open(n, name)
	case sysStatAt:
		return p.statAt(n, caller, name)
	case unix.SYS_READLINKAT:
		return p.readLink(n, caller, name)
	}
	return p.access(n, name)
}

// find returns the file that the caller has by a number, or nil.
func (p *Program) find(n *notification, number uint64) *openFile {
	thread := int(n.pid)
	key := descriptor{group(thread), int(int32(number))}
	p.mu.Lock()
	f := p.files[key]
	p.mu.Unlock()
	if f == nil {
		return nil
	}
	runs := f.owner.runs(thread)
	if !p.waits(n.id) {
		return nil
	}
	if !runs { // the owner has ended, or it has closed the file by execve
		p.drop(key, f)
		return nil
	}
	return f
}

// drop closes a file, whose descriptor is closed.
func (p *Program) drop(key descriptor, f *openFile) {
	p.mu.Lock()
	if p.files[key] == f {
		delete(p.files, key)
	}
	p.mu.Unlock()
	f.close()
}

// use runs a function on the file, if it is open.
func (f *openFile) use(do func() unix.Errno) unix.Errno {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return unix.EBADF // the model has closed it meanwhile
	}
	return do()
}

func (p *Program) write(n *notification, f *openFile) (int64, unix.Errno) {
	const most = 8 + 65535*8*2
	b := make([]byte, min(n.args[2], most))
	if f.owner.Read(n.args[1], b) != nil {
		return 0, unix.EFAULT // core/uverbs_main.c, ib_uverbs_write
	}
	r, errno := ParseWrite(f.owner, b)
	if errno == 0 {
		errno = p.request(r, n, f)
	}
	return int64(n.args[2]), errno
}

func (p *Program) ioctl(n *notification, f *openFile) unix.Errno {
	if f.messages != nil || uint32(n.args[1]) != verbsIoctl || p.host.WriteOnly {
		return unix.ENOTTY // core/uverbs_ioctl.c, ib_uverbs_ioctl; fs/ioctl.c, vfs_ioctl
	}
	c, errno := ParseIoctl(f.owner, n.args[2], f.node.Driver, f.node.Methods)
	if errno != 0 {
		return errno
	}
	if c.MethodID == invokeWrite {
		r, errno := requestOf(c)
		if errno == 0 {
			errno = p.request(r, n, f)
		}
		if answer, ok := c.arguments[attrDriverOut]; ok && errno == 0 {
			errno = c.valid(answer)
		}
		return errno
	}
	c.program, c.id = p, n.id
	errno = f.use(func() unix.Errno { return f.file.Call(c) })
	p.log(f, "method %#x of object %#x: %s", c.Method, c.Object, errnoName(errno))
	return errno
}

func (p *Program) request(r *Request, n *notification, f *openFile) unix.Errno {
	r.program, r.id = p, n.id
	errno := f.use(func() unix.Errno { return f.file.Command(r) })
	p.log(f, "command %d, extended %v: %s", r.Command, r.Extended, errnoName(errno))
	return errno
}

func (p *Program) log(f *openFile, format string, args ...any) {
	if p.host.Log != nil {
		p.host.Log("pid %d: "+format, append([]any{f.owner.pid}, args...)...)
	}
}

func errnoName(errno unix.Errno) string {
	if errno == 0 {
		return "ok"
	}
	return unix.ErrnoName(errno)
}

// place returns where the host has what a program calls name: below its directory of
// files. Nothing else is there.
func (p *Program) place(name string) (string, bool) {
	name = path.Clean(name)
	if name == nodeDir {
		return filepath.Join(p.sysfs, nodeNames), true
	}
	for _, class := range []string{"/sys/class/infiniband", "/sys/class/infiniband_verbs", "/sys/class/misc/rdma_cm"} {
		if name == class || strings.HasPrefix(name, class+"/") {
			return filepath.Join(p.sysfs, strings.TrimPrefix(name, "/sys/class/")), true
		}
	}
	return "", false
}

// A host's directory of files has one more, with empty files by the names of its
// nodes, for who lists them.
const (
	nodeDir   = "/dev/infiniband"
	nodeNames = "dev"
)

func (p *Program) open(n *notification, name string) (int64, unix.Errno, outcome) {
	if file, ok := p.place(name); ok {
		fd, err := unix.Open(file, int(n.args[2])|unix.O_CLOEXEC, 0)
		if err != nil {
			return 0, errnoOf(err), answered
		}
		defer unix.Close(fd)
		number, errno := p.give(n.id, fd, -1)
		return int64(number), errno, answered
	}
	node, ok := p.host.Nodes[name]
	if !ok {
		if strings.HasPrefix(name, nodeDir+"/") {
			return 0, unix.ENOENT, answered // the model has no such node
		}
		return 0, 0, byKernel
	}
	number, errno := p.openNode(n, name, node)
	return int64(number), errno, answered
}

func (p *Program) openNode(n *notification, name string, node Node) (int, unix.Errno) {
	owner, err := openProcess(int(n.pid))
	if err != nil {
		return 0, errnoOf(err)
	}
	f := &openFile{owner: owner, node: node}
	fd, err := f.open(name, int(n.args[2]))
	if err != nil {
		owner.close()
		return 0, errnoOf(err)
	}
	number := firstFD
	for ; number <= lastFD && owner.has(number); number++ {
	}
	if number > lastFD {
		f.close()
		return 0, unix.EMFILE // fs/file.c, alloc_fd
	}
	key := descriptor{owner.pid, number}
	p.mu.Lock()
	_, errno := p.give(n.id, fd, number) // fails if the caller has ended: then owner may be another process
	old := p.files[key]
	if errno == 0 {
		p.files[key] = f
		p.watch(key, f)
	}
	p.mu.Unlock()
	switch {
	case errno != 0:
		f.close()
	case old != nil:
		old.close() // its descriptor was closed, or the number would not be free
	}
	return number, errno
}

// open opens the file, and returns the descriptor for the program.
func (f *openFile) open(name string, flags int) (fd int, err error) {
	if f.node.OpenMessages != nil {
		if f.count, err = newEventCount(flags); err != nil {
			return -1, err
		}
		f.count.file = f
		if f.messages, err = f.node.OpenMessages(f.count); err != nil {
			f.count.close()
		}
		return f.count.fd, err
	}
	if f.memfd, err = unix.MemfdCreate(path.Base(name), unix.MFD_CLOEXEC); err != nil {
		return -1, err
	}
	if err = unix.Ftruncate(f.memfd, int64(f.node.Pages)); err == nil {
		f.pages, err = unix.Mmap(f.memfd, 0, f.node.Pages, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err == nil {
		if f.file, err = f.node.Open(f.pages); err != nil {
			_ = unix.Munmap(f.pages)
		}
	}
	if err != nil {
		_ = unix.Close(f.memfd)
	}
	return f.memfd, err
}

// give copies a descriptor to the program, which waits for the answer to a notification:
// to a number, or to the lowest free one.
func (p *Program) give(id uint64, fd, number int) (int, unix.Errno) {
	a := addFD{id: id, from: uint32(fd), fdfls: unix.O_CLOEXEC}
	if number >= 0 {
		a.flags, a.to = flagSetNumber, uint32(number)
	}
	return notifIoctl(p.listener, notifAddFD, unsafe.Pointer(&a))
}

func (p *Program) statAt(n *notification, caller *Process, name string) (int64, unix.Errno, outcome) {
	if name == "" {
		f := p.find(n, n.args[0])
		if f == nil || n.args[3]&unix.AT_EMPTY_PATH == 0 {
			return 0, 0, byKernel
		}
		return 0, statNode(caller, f.node, n.args[2]), answered
	}
	if node, ok := p.host.Nodes[name]; ok {
		return 0, statNode(caller, node, n.args[2]), answered
	}
	file, ok := p.place(name)
	if !ok {
		return 0, 0, byKernel
	}
	var stat unix.Stat_t
	if err := unix.Stat(file, &stat); err != nil {
		return 0, errnoOf(err), answered
	}
	return 0, writeStat(caller, &stat, n.args[2]), answered
}

// watch closes a file when its owner has ended, if nothing has closed it before.
func (p *Program) watch(key descriptor, f *openFile) {
	p.watches.Go(func() { // ends with the process, or the file
		if !f.owner.awaitEnd() {
			return
		}
		if p.host.ended != nil {
			p.host.ended(p)
		}
		p.drop(key, f)
	})
}

func (p *Program) readLink(n *notification, caller *Process, name string) (int64, unix.Errno, outcome) {
	file, ok := p.place(name)
	if !ok {
		return 0, 0, byKernel
	}
	target, err := os.Readlink(file)
	if err != nil {
		return 0, errnoOf(err), answered
	}
	size := min(uint64(len(target)), n.args[3])
	if caller.Answer(n.args[2], []byte(target)[:size]) != nil {
		return 0, unix.EFAULT, answered // fs/namei.c, readlink_copy
	}
	return int64(size), 0, answered
}

// access says that everybody may do everything with a device.
func (p *Program) access(n *notification, name string) (int64, unix.Errno, outcome) {
	if _, ok := p.host.Nodes[name]; ok {
		return 0, 0, answered
	}
	file, ok := p.place(name)
	if !ok {
		return 0, 0, byKernel
	}
	if err := unix.Access(file, uint32(n.args[2])); err != nil {
		return 0, errnoOf(err), answered
	}
	return 0, 0, answered
}

func statNode(p *Process, node Node, addr uint64) unix.Errno {
	return writeStat(p, &unix.Stat_t{Mode: unix.S_IFCHR | 0o666, Nlink: 1, Rdev: unix.Mkdev(node.Major, node.Minor)}, addr)
}

// writeStat gives the struct to a program of the same architecture.
func writeStat(p *Process, stat *unix.Stat_t, addr uint64) unix.Errno {
	b := unsafe.Slice((*byte)(unsafe.Pointer(stat)), unsafe.Sizeof(*stat))
	if p.Answer(addr, b) != nil {
		return unix.EFAULT // fs/stat.c, cp_new_stat
	}
	return 0
}

func errnoOf(err error) unix.Errno {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return unix.EIO // the model does not know more
}
