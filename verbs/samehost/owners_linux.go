package samehost

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The part of linux/unix_diag.h that golang.org/x/sys does not have.
const (
	showName = 0x01 // UDIAG_SHOW_NAME
	showUID  = 0x40 // UDIAG_SHOW_UID, since Linux 5.3

	attrName = 0 // UNIX_DIAG_NAME
	attrUID  = 7 // UNIX_DIAG_UID

	stateListen = 10 // TCP_LISTEN

	requestLen = 24 // of struct unix_diag_req
	messageLen = 16 // of struct unix_diag_msg
)

var native = binary.NativeEndian

// errNoOwners is a kernel that does not say whose a Unix socket is.
var errNoOwners = errors.New("the kernel does not tell the owners of sockets")

// Names asks the kernel for the names of the listening Unix sockets of a user in this
// network namespace, as /proc/net/unix shows them. The owner is whoever made the socket,
// which nobody else can say of theirs. Linux before 5.3, or without unix_diag, does not
// tell.
func Names(uid int) ([]string, error) {
	var names []string
	err := lookAtSockets(func(s listening) bool {
		if s.owner == uid && s.name != "" {
			names = append(names, s.name)
		}
		return true
	})
	return names, err
}

// EachName calls see with each name that Names would return, as soon as it is found. It is for those
// who ask again and again: it rests in between, so that all calls of the process together take a tenth
// of the time, of which up to 10 ms can be saved up. So it takes long where a stranger has many sockets.
// It returns os.ErrClosed once ended is closed, and an error that wraps ErrUnknownUser if others look
// like the user. Any number of goroutines may call it at once. The time that see takes counts.
func EachName(uid int, ended <-chan struct{}, see func(name string)) error {
	if err := checkUser(uid); err != nil {
		return err
	}
	last := time.Now()
	pause := func() (goOn bool) {
		now := time.Now()
		goOn = sleep(searching.spend(now, now.Sub(last)), ended)
		last = time.Now()
		return goOn
	}
	if !pause() { // for what others have taken
		return os.ErrClosed
	}
	looked, goOn := 0, true
	err := lookAtSockets(func(s listening) bool {
		if s.owner == uid && s.name != "" {
			see(s.name)
		}
		if looked++; looked%pauseAfter == 0 {
			goOn = pause()
		}
		return goOn
	})
	if !goOn {
		return os.ErrClosed
	}
	now := time.Now()
	searching.spend(now, now.Sub(last))
	return err
}

const (
	pauseAfter = 128                   // sockets, after which EachName may pause
	leastPause = 20 * time.Millisecond // or sleeping would take more than the sockets
	mostTaken  = 100 * time.Millisecond
)

// searching is that of all calls of EachName.
var searching allowance

// allowance is a tenth of the time, for work that can wait.
type allowance struct {
	mu   sync.Mutex
	paid time.Time // when what was spent is a tenth of the time; guarded by mu
}

// spend counts what was taken until now, and returns for how long there is to be a rest. Work comes
// in short pieces: one that took longer than mostTaken was held up, by SIGSTOP for example, which
// must not make a rest of hours.
func (a *allowance) spend(now time.Time, took time.Duration) time.Duration {
	const saved = 100 * time.Millisecond
	took = min(took, mostTaken)
	a.mu.Lock()
	defer a.mu.Unlock()
	if earliest := now.Add(-took - saved); a.paid.Before(earliest) {
		a.paid = earliest
	}
	a.paid = a.paid.Add((1 + restFactor) * took)
	return a.paid.Sub(now)
}

// sleep returns false if it was ended.
func sleep(d time.Duration, ended <-chan struct{}) bool {
	if d < leastPause {
		select {
		case <-ended:
			return false
		default:
			return true
		}
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select { // ends with the timer, or as the caller says
	case <-ended:
		return false
	case <-timer.C:
		return true
	}
}

// listening is a listening Unix socket.
type listening struct {
	typ   int
	name  string // "" if it is not an abstract one
	owner int
}

// lookAtSockets asks the kernel for all listening Unix sockets, until see has seen
// enough: the kernel cannot be asked for one by its name.
func lookAtSockets(see func(listening) (more bool)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	request := make([]byte, unix.NLMSG_HDRLEN+requestLen)
	native.PutUint32(request, uint32(len(request)))
	native.PutUint16(request[4:], unix.SOCK_DIAG_BY_FAMILY)
	native.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	body := request[unix.NLMSG_HDRLEN:]
	body[0] = unix.AF_UNIX
	native.PutUint32(body[4:], 1<<stateListen)
	native.PutUint32(body[12:], showName|showUID)
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	for buf := make([]byte, 64<<10); ; {
		// does not wait long: the kernel answers, or says why not
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		more, err := takeSockets(buf[:n], see)
		if err != nil || !more {
			return err
		}
	}
}

// A stranger who has many sockets makes a look at all of them long, and whoever dials
// a name of theirs with a full queue looks. So one looks at a time, at no more than
// maxLooked, and for restFactor times as long as that took nobody looks again.
const (
	maxLooked  = 1 << 15
	restFactor = 9
	mostLook   = time.Second            // a look that took longer was held up, as in spend
	knownTime  = 100 * time.Millisecond // for which an owner is remembered
	maxKnown   = 64                     // names
)

// owners remembers whose names are.
var owners ownerMemory

type ownerMemory struct {
	mu    sync.Mutex
	rest  time.Time           // nobody looks before; guarded by mu
	known map[listening]known // by type and name; guarded by mu
	looks int                 // guarded by mu
}

type known struct {
	whose owner
	until time.Time
}

// owner is the user who has a name.
type owner int

// unknownUser is that of a name of which the kernel does not tell, or that has too many
// beside it to look at.
const unknownUser owner = -1

func (o owner) ours() bool { return o == owner(os.Geteuid()) }

// of returns whose a name is that is taken. It waits for no more than one look.
func (m *ownerMemory) of(typ int, name string) owner {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := listening{typ: typ, name: name}
	begun := time.Now()
	if k, ok := m.known[key]; ok && begun.Before(k.until) {
		return k.whose
	}
	if begun.Before(m.rest) {
		return unknownUser
	}
	whose, looked := unknownUser, 0
	_ = lookAtSockets(func(s listening) bool { // without an answer it stays unknown
		looked++
		if s.typ == typ && s.name == name {
			whose = owner(s.owner)
			return false
		}
		return looked < maxLooked
	})
	m.looks++
	now := time.Now()
	took := min(now.Sub(begun), mostLook)
	m.rest = now.Add(restFactor * took)
	if m.known == nil || len(m.known) >= maxKnown {
		m.known = make(map[listening]known)
	}
	m.known[key] = known{whose, now.Add(max(knownTime, restFactor*took))}
	return whose
}

// takeSockets shows the sockets in one datagram to see, and reports whether it is to
// see those of the next.
func takeSockets(b []byte, see func(listening) bool) (more bool, err error) {
	messages, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return false, fmt.Errorf("sockets' owners: %w", err)
	}
	for _, m := range messages {
		switch m.Header.Type {
		case unix.NLMSG_DONE:
			return false, nil
		case unix.NLMSG_ERROR:
			if len(m.Data) < 4 {
				return false, errNoOwners
			}
			return false, fmt.Errorf("%w: %w", errNoOwners, syscall.Errno(-int32(native.Uint32(m.Data))))
		case unix.SOCK_DIAG_BY_FAMILY:
			s, err := parseSocket(m.Data)
			if err != nil {
				return false, err
			}
			if !see(s) {
				return false, nil
			}
		}
	}
	return true, nil
}

// parseSocket parses a struct unix_diag_msg with its attributes.
func parseSocket(b []byte) (s listening, err error) {
	if len(b) >= messageLen {
		s.typ = int(b[1])
	}
	owned := false
	for b = b[min(messageLen, len(b)):]; len(b) >= unix.SizeofRtAttr; {
		length := int(native.Uint16(b))
		if length < unix.SizeofRtAttr || length > len(b) {
			return s, fmt.Errorf("%w: attribute of %d bytes", errNoOwners, length)
		}
		value := b[unix.SizeofRtAttr:length]
		switch native.Uint16(b[2:]) {
		case attrName:
			if len(value) > 1 && value[0] == 0 && !slices.Contains(value[1:], 0) {
				s.name = "@" + string(value[1:])
			}
		case attrUID:
			if len(value) == 4 {
				s.owner, owned = int(native.Uint32(value)), true
			}
		}
		b = b[min((length+3)&^3, len(b)):]
	}
	if !owned {
		return s, errNoOwners
	}
	return s, nil
}
