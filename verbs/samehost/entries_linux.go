package samehost

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The names of a socket in a [Directory] are hard links to the one that it was bound
// to, which nobody else knows. A link takes no name that is there, so a name that is
// free has one taker; where it is not,
//
//   - a name whose socket is gone was left by a process that died. A listener that
//     wants it removes it and links its own. It holds a lock (flock) on the user's
//     directory from before it looks: two that want it do not remove each other's;
//   - a name whose socket lives is in use: the error wraps EADDRINUSE.
//
// Whether the socket lives is asked by a connect of another type of socket, of which
// its owner learns nothing. Only the user can write to their directory, so the locks are
// those of their own processes. A process that is stopped while it has the lock keeps
// others from what the dead have left, and from nothing else.

// entries are what stands in a user's directory for a listener.
type entries struct {
	dir  *os.File // the user's directory
	raw  func(func(fd uintptr)) error
	mode uint32

	mu     sync.Mutex
	first  string   // that the socket was bound to; "" once removed; guarded by mu
	linked []string // guarded by mu
	id     SocketID // written by bind
}

const (
	sweepAtMost = 256 // names that a listener looks at for those of the dead
	lockTries   = 20
	lockPause   = time.Millisecond
)

// sweepAge is how old those have to be: one that was just bound looks dead.
var sweepAge = time.Minute

// Listen makes a socket in the directory that has no name yet, see [Listener.SetNames].
// Processes of other users cannot connect to it, unless cfg.Others is set.
func (d *Directory) Listen(cfg ListenConfig) (*Listener, error) {
	e, err := d.entries(cfg)
	if err != nil {
		return nil, err
	}
	l, err := listen(cfg, e.bind)
	if err != nil {
		e.remove()
		return nil, err
	}
	l.entries = e
	e.sweep()
	return l, nil
}

// entries returns what is to stand in our user's directory for a listener: nothing yet.
func (d *Directory) entries(cfg ListenConfig) (*entries, error) {
	var dir *os.File
	var err error
	unfit := d.within(func(at int) { dir, err = d.ownPlace(at, cfg) })
	if err = cmp.Or(unfit, err); err != nil {
		return nil, err
	}
	conn, err := dir.SyscallConn()
	if err != nil {
		dir.Close()
		return nil, err
	}
	e := &entries{dir: dir, raw: conn.Control, mode: 0o600}
	if cfg.Others {
		e.mode = 0o666
	}
	return e, nil
}

// placesOfANumber is how many users of one number, each in a user namespace of their own,
// find a place: in 0, 0.1 and so on.
const placesOfANumber = 16

// ownPlace opens our user's directory, or if another who has our number has that, and we
// are found by any, the first that is ours or nobody's.
func (d *Directory) ownPlace(at int, cfg ListenConfig) (dir *os.File, err error) {
	name := strconv.Itoa(os.Geteuid())
	dir, err = ownDirectory(at, d.path, name, cfg.Others)
	for i := 1; err != nil && cfg.AnyPlace && i < placesOfANumber; i++ {
		dir, err = ownDirectory(at, d.path, name+"."+strconv.Itoa(i), cfg.Others)
	}
	return dir, err
}

// ownDirectory opens a directory of our user in the one at root, and makes it if there is none.
func ownDirectory(at int, root, name string, others bool) (*os.File, error) {
	path := root + "/" + name
	made := false
	if err := unix.Mkdirat(at, name, 0o711); err == nil {
		made = true
	} else if err != unix.EEXIST {
		return nil, &os.PathError{Op: "mkdirat", Path: path, Err: err}
	}
	fd, err := openWithin(at, name, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: path, Err: err}
	}
	dir := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		dir.Close()
		return nil, os.NewSyscallError("fstat", err)
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		dir.Close()
		return nil, &os.PathError{Op: "use", Path: path, Err: errNotOurs}
	}
	if (made || others) && st.Mode&0o711 != 0o711 {
		// what the umask took away; if that fails others stay outside
		_ = unix.Fchmod(fd, 0o711)
	}
	return dir, nil
}

var errNotOurs = errors.New("the directory is another user's, or others may write to it")

// bind gives the socket its first name.
func (e *entries) bind(socket int) error {
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return err
	}
	first := "." + hex.EncodeToString(random[:])
	if err := unix.Fchmod(socket, e.mode); err != nil { // bind gives its mode to the name
		return err
	}
	var err error
	controlErr := e.raw(func(dir uintptr) {
		if err = unix.Bind(socket, &unix.SockaddrUnix{Name: place(int(dir)) + "/" + first}); err != nil {
			return
		}
		e.first = first
		if e.mode != 0o600 { // of which the umask takes nothing that matters
			if err = unix.Fchmodat(int(dir), first, e.mode, 0); err != nil {
				return
			}
		}
		var st unix.Stat_t
		err = unix.Fstatat(int(dir), first, &st, unix.AT_SYMLINK_NOFOLLOW)
		e.id = idOf(&st)
	})
	return errors.Join(controlErr, err)
}

// SetNames gives the listener these names in its directory, and no others. It takes what
// it can, and returns an error for the rest: EADDRINUSE if somebody has the name. gone
// is set if the socket cannot be found any more where it was, so that it has to be made
// anew.
func (l *Listener) SetNames(want []string) (gone bool, err error) {
	e := l.entries
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.first == "" {
		return false, os.ErrClosed
	}
	controlErr := e.raw(func(fd uintptr) {
		dir := int(fd)
		if !e.has(dir, e.first) {
			gone = true
			return
		}
		kept := e.linked[:0]
		for _, name := range e.linked {
			switch {
			case !e.has(dir, name): // somebody took it away
			case slices.Contains(want, name):
				kept = append(kept, name)
			default:
				_ = unix.Unlinkat(dir, name, 0)
			}
		}
		e.linked = kept
		for _, name := range want {
			if slices.Contains(e.linked, name) {
				continue
			}
			linkErr := e.link(dir, name)
			// it was when the socket was handed over
			if linkErr == unix.EADDRINUSE && e.has(dir, name) {
				linkErr = nil
			}
			if linkErr != nil {
				err = errors.Join(err, &os.PathError{Op: "link", Path: e.dir.Name() + "/" + name, Err: linkErr})
			} else {
				e.linked = append(e.linked, name)
			}
		}
	})
	return gone, errors.Join(controlErr, err)
}

// has reports whether a name is one of the socket.
func (e *entries) has(dir int, name string) bool {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && idOf(&st) == e.id && st.Mode&unix.S_IFMT == unix.S_IFSOCK
}

// link takes a name that nobody has, or a dead process.
func (e *entries) link(dir int, name string) error {
	err := unix.Linkat(dir, e.first, dir, name, 0)
	if err != unix.EEXIST || !isDead(dir, name) {
		return inUse(err)
	}
	return e.locked(dir, func() error {
		if isDead(dir, name) {
			if err := unix.Unlinkat(dir, name, 0); err != nil && err != unix.ENOENT {
				return err
			}
		}
		return inUse(unix.Linkat(dir, e.first, dir, name, 0))
	})
}

func inUse(err error) error {
	if err == unix.EEXIST {
		return unix.EADDRINUSE
	}
	return err
}

// locked does what needs the lock of the directory. It does not wait long for it.
func (e *entries) locked(dir int, do func() error) error {
	for try := 1; ; try++ {
		err := unix.Flock(dir, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if err != unix.EINTR && err != unix.EWOULDBLOCK || try == lockTries {
			return unix.EADDRINUSE
		}
		time.Sleep(lockPause)
	}
	defer unix.Flock(dir, unix.LOCK_UN)
	return do()
}

// isDead reports whether a name is that of a socket that is no more.
func isDead(dir int, name string) bool {
	fd, _, err := openSocket(dir, name, os.Geteuid())
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	socket, err := newSocket(unix.SOCK_DGRAM) // a living one is of another type, and learns nothing
	if err != nil {
		return false
	}
	defer unix.Close(socket)
	return connect(socket, place(fd)) == unix.ECONNREFUSED
}

// sweep takes away what dead processes have left under names that nobody may ever
// want again: addresses come and go.
func (e *entries) sweep() {
	list, err := e.dir.Readdirnames(sweepAtMost)
	if err != nil {
		return
	}
	_ = e.raw(func(fd uintptr) {
		dir := int(fd)
		_ = e.locked(dir, func() error {
			for _, name := range list {
				var st unix.Stat_t
				err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
				if err == nil && time.Since(time.Unix(st.Ctim.Unix())) > sweepAge && isDead(dir, name) {
					_ = unix.Unlinkat(dir, name, 0)
				}
			}
			return nil
		})
	})
}

// leave leaves the names to the process that has the socket.
func (e *entries) leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.first, e.linked = "", nil
	e.dir.Close()
}

// remove takes the names away.
func (e *entries) remove() {
	e.mu.Lock()
	defer e.mu.Unlock()
	_ = e.raw(func(fd uintptr) {
		for _, name := range append(e.linked, e.first) {
			if name != "" && e.has(int(fd), name) {
				_ = unix.Unlinkat(int(fd), name, 0)
			}
		}
	})
	e.first, e.linked = "", nil
	e.dir.Close()
}
