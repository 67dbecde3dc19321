package samehost

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Directory is where processes of one host meet that share no network namespace, whose
// abstract names they would find: a directory of the file system that all of them see.
// Each user has a directory in it, named by the number of the user, which only that user
// can write to, and in that the sockets of the user's processes.
//
//	DIR/              of root or of our user; if others may write to it, sticky
//	DIR/1000/         of user 1000, mode 0711: nobody else can list it
//	DIR/1000/NAME     a socket of one of their processes, mode 0600
//	DIR/1000/.NAME    the same socket: the name that it was bound to
//
// What stands there is anybody's, and taken for no more than a hint: no symbolic link
// is followed, no mount point crossed, nothing opened but directories, and who listens
// is asked for their credentials as everywhere. It has to be on a file system of this
// host: the calls of others may wait for another machine, or for a process of a
// stranger's.
//
// A Directory is looked at again each half second, on a goroutine of its own, for which
// nobody waits longer than two seconds, and no more than once while it does not return.
type Directory struct {
	path    string
	unknown bool // it may belong to the overflow user

	mu    sync.Mutex
	root  *os.File      // nil if it cannot be used; guarded by mu, as what follows
	err   error         // why not
	until time.Time     // it is looked at again after this
	look  chan struct{} // closed when the look that is under way is over; nil if none is
	since time.Time     // when that began
}

const (
	rootTime  = 500 * time.Millisecond // how long an open directory is kept
	unfitTime = 5 * time.Second        // how long one that cannot be used is not looked at
	openTime  = 2 * time.Second        // a busy machine may need it to run a goroutine
)

var directories sync.Map // of *Directory, by directoryKey

type directoryKey struct {
	path    string
	unknown bool
}

// DirectoryAt returns the directory at a path. That it can be used shows in its use.
func DirectoryAt(path string) *Directory { return directoryOf(directoryKey{path, false}) }

// DirectoryOfUnknown is DirectoryAt, and the directory may also belong to somebody for
// whom our user namespace has no number, the host's root for example. That is for peers who
// prove who they are: its owner can take away what stands there, and do no more than that.
func DirectoryOfUnknown(path string) *Directory { return directoryOf(directoryKey{path, true}) }

func directoryOf(key directoryKey) *Directory {
	d, ok := directories.Load(key)
	if !ok {
		d, _ = directories.LoadOrStore(key, &Directory{path: key.path, unknown: key.unknown})
	}
	return d.(*Directory)
}

// Path returns the path.
func (d *Directory) Path() string { return d.path }

// Err returns why the directory cannot be used, nil if it can.
func (d *Directory) Err() error {
	_, err := d.open()
	return err
}

// within calls use with a descriptor of the directory. The error is that it cannot be used.
func (d *Directory) within(use func(dir int)) error {
	for {
		root, err := d.open()
		if err != nil {
			return err
		}
		raw, err := root.SyscallConn()
		if err != nil {
			return err
		}
		if raw.Control(func(fd uintptr) { use(int(fd)) }) == nil {
			return nil
		}
		// it was let go of in this moment
	}
}

// open returns the directory's descriptor, of which it stays the owner.
func (d *Directory) open() (*os.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.look != nil || !time.Now().Before(d.until) {
		if d.look == nil {
			d.look, d.since = make(chan struct{}), time.Now()
			// ends with the calls of openRoot, which on a file system of another machine may
			// take long
			go d.lookAgain()
		}
		look, timer := d.look, time.NewTimer(max(0, openTime-time.Since(d.since)))
		d.mu.Unlock()
		answers := true
		select { // ends with the look, or the timer
		case <-look:
			timer.Stop()
		case <-timer.C:
			answers = false
		}
		d.mu.Lock()
		if !answers {
			return nil, fmt.Errorf("%s: its file system does not answer", d.path)
		}
	}
	return d.root, d.err
}

// lookAgain opens the directory, and lets go of what it had.
func (d *Directory) lookAgain() {
	root, err := openRoot(d.path, d.unknown)
	keep := rootTime
	if err != nil {
		keep = unfitTime
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.root != nil {
		d.root.Close()
	}
	d.root, d.err, d.until = root, err, time.Now().Add(keep)
	close(d.look)
	d.look = nil
	if root != nil {
		time.AfterFunc(keep, func() { d.drop(root) })
	}
}

func (d *Directory) drop(root *os.File) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.root == root {
		d.root.Close()
		d.root, d.until = nil, time.Time{}
	}
}

// local are the file systems of this host (linux/magic.h), whose calls wait for
// nobody but its disks.
var local = map[int64]bool{
	unix.TMPFS_MAGIC: true, unix.RAMFS_MAGIC: true, unix.EXT4_SUPER_MAGIC: true, unix.XFS_SUPER_MAGIC: true,
	unix.BTRFS_SUPER_MAGIC: true, unix.F2FS_SUPER_MAGIC: true, unix.OVERLAYFS_SUPER_MAGIC: true,
	0xca451a4e: true, // bcachefs
	0x2fc12fc1: true, // ZFS
}

// openRoot opens the directory if it is safe to meet there.
func openRoot(path string, unknown bool) (*os.File, error) {
	if err := CheckUser(); err != nil {
		return nil, err
	}
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("%q is no absolute path", path)
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: path, Err: err}
	}
	root := os.NewFile(uintptr(fd), path)
	if err := checkRoot(fd, unknown); err != nil {
		root.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return root, nil
}

func checkRoot(fd int, unknown bool) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	if !local[int64(uint32(fs.Type))] {
		return fmt.Errorf("a file system of type %#x, which may not be of this host alone", uint32(fs.Type))
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() && !(unknown && checkUser(int(st.Uid)) != nil) {
		return fmt.Errorf("belongs to user %d", st.Uid)
	}
	if st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
		return fmt.Errorf("mode %#o lets others take away what stands there (chmod +t)", st.Mode&0o7777)
	}
	return nil
}

// beneath is how names are looked up that strangers may have made.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV

// openWithin opens a name in a directory, and follows nothing that leads away.
func openWithin(dir int, name string, flags uint64) (int, error) {
	const tries = 8
	for try := 1; ; try++ {
		fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: flags | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: beneath})
		// something was renamed meanwhile
		if err == unix.EINTR || err == unix.EAGAIN && try < tries {
			continue
		}
		return fd, err
	}
}

// anyUser is the owner of a socket who may be anybody.
const anyUser = int(unknownUser)

// openSocket opens the socket of a name, as a place only. EACCES, ELOOP, ENOTDIR and
// the like mean, as ENOENT does, that no socket that may be used stands there.
func openSocket(dir int, name string, user int) (int, SocketID, error) {
	fd, err := openWithin(dir, name, unix.O_PATH)
	if err != nil {
		return -1, SocketID{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK || user != anyUser && int(st.Uid) != user {
		unix.Close(fd)
		return -1, SocketID{}, unix.ENOENT
	}
	return fd, idOf(&st), nil
}

// SocketID tells a socket that stands in a [Directory] from all others of the host, as
// long as it stands there: its owner and those who connect to it see the same.
type SocketID struct{ Device, Inode uint64 }

func idOf(st *unix.Stat_t) SocketID { return SocketID{uint64(st.Dev), st.Ino} }

// place is the path of an open file or, behind it, of what stands in an open
// directory. It spares the 108 bytes that the path of a socket may have.
func place(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// Dial is the function [Dial] for the first of the names of a user's sockets in the
// directory. That it cannot be used, or has no such name, means that nobody listens.
func (d *Directory) Dial(typ int, admit func(Peer) bool, user int, names ...string) (*Conn, error) {
	return d.dial(typ, admit, strconv.Itoa(user), user, names)
}

// DialIn is Dial for what stands in one of the Places, whoever it belongs to.
func (d *Directory) DialIn(typ int, admit func(Peer) bool, place string, names ...string) (*Conn, error) {
	return d.dial(typ, admit, place, anyUser, names)
}

func (d *Directory) dial(typ int, admit func(Peer) bool, place string, user int, names []string) (*Conn, error) {
	var c *Conn
	var err error
	unfit := d.within(func(dir int) {
		var id SocketID
		c, err = dial(typ, admit, len(names), func(socket, i int) (whose owner, err error) {
			whose, id, err = connectWithin(socket, dir, place+"/"+names[i], user)
			return whose, err
		})
		if err == nil {
			c.to = id
		}
	})
	if unfit != nil {
		return nil, fmt.Errorf("%w: %w", unix.ECONNREFUSED, unfit)
	}
	return c, err
}

// connectWithin connects to a name that stands in a directory.
func connectWithin(socket, dir int, name string, user int) (whose owner, id SocketID, err error) {
	fd, id, err := openSocket(dir, name, user)
	switch err {
	case nil:
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM:
		return unknownUser, id, err
	default:
		return unknownUser, id, unix.ECONNREFUSED
	}
	defer unix.Close(fd)
	err = connect(socket, place(fd))
	// not for us, or there is no /proc
	if err == unix.EACCES || err == unix.EPERM || err == unix.ENOENT {
		err = unix.ECONNREFUSED
	}
	return owner(user), id, err
}

// placesAtMost is how many names in the directory are looked at: whoever makes more
// there takes away the acceleration.
const placesAtMost = 256

// Places lists the directories of users that there are, in no order. It is empty if the
// directory may not be listed.
func (d *Directory) Places() []string {
	fd := -1
	var err error
	unfit := d.within(func(at int) {
		fd, err = openWithin(at, ".", unix.O_DIRECTORY|unix.O_RDONLY|unix.O_NONBLOCK)
	})
	if unfit != nil || err != nil {
		return nil
	}
	dir := os.NewFile(uintptr(fd), d.path)
	defer dir.Close()
	names, _ := dir.Readdirnames(placesAtMost)
	return slices.DeleteFunc(names, func(name string) bool {
		return name[0] < '0' || name[0] > '9'
	})
}
