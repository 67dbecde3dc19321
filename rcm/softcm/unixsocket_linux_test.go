package softcm

import (
	"net"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/linger"
	"github.com/seed-b9b531af/ramjet/internal/passrights"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// listenAtUnix listens at a Unix socket and beside it.
func listenAtUnix(t *testing.T, path string) (UnixSocket, rcm.Listener) {
	t.Helper()
	ln, err := net.Listen("unix", path)
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	s, err := UnixSocketAt("unix", path)
	require.NoError(t, err)
	l, err := New(Config{}).(*fabric).At(s).Listen(UnixSocketAddr, rcm.ListenConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return s, l
}

// A peer of the same user, which may reach the name, has to show a connection to the socket.
func TestAtAUnixSocketAPeerShowsThatItMayConnect(t *testing.T) {
	s, l := listenAtUnix(t, t.TempDir()+"/socket")
	other, _ := listenAtUnix(t, t.TempDir()+"/other")
	to := func(s UnixSocket) func(t *testing.T) int {
		return func(t *testing.T) int {
			fd, err := s.connectPlain()
			require.NoError(t, err)
			return fd
		}
	}
	pair := func(t *testing.T) int {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		unix.Close(fds[1])
		return fds[0]
	}
	file := func(t *testing.T) int {
		fd, err := unix.Open(s.Address, unix.O_PATH|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		return fd
	}
	for _, c := range []struct {
		name string
		show []func(t *testing.T) int
		want bool
	}{
		{"nothing", nil, false},
		{"a connection", []func(*testing.T) int{to(s)}, true},
		{"two", []func(*testing.T) int{to(s), to(s)}, false},
		{"a connection to another socket", []func(*testing.T) int{to(other)}, false},
		{"one to itself", []func(*testing.T) int{pair}, false},
		{"the file", []func(*testing.T) int{file}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			denied := l.Stats().Denied
			conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: s.name()})
			require.NoError(t, err)
			defer conn.Close()
			peer := speaker{conn, t}
			require.Equal(t, handshake.KindShow, peer.read().Kind)
			var fds []int
			for _, open := range c.show {
				fd := open(t)
				defer unix.Close(fd)
				fds = append(fds, fd)
			}
			var rights []byte
			if len(fds) > 0 {
				rights = unix.UnixRights(fds...)
			}
			_, _, err = conn.WriteMsgUnix(requestTo(UnixSocketAddr), rights, nil)
			require.NoError(t, err)
			if c.want {
				_, err := l.Accept(cmtest.Within(t))
				require.NoError(t, err)
				return
			}
			require.EqualValues(t, rcm.ReasonPeerDenied, peer.read().Reason)
			peer.awaitEnd()
			require.Equal(t, denied+1, l.Stats().Denied)
		})
	}
}

// A peer can hold the lock of a TCP socket for as long as it likes, by a write from memory that does not
// come. Who asks for the socket's name waits for the lock, and so does the next garbage collection.
func TestAtAUnixSocketNobodyWaitsForWhatAPeerShows(t *testing.T) {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if errno != 0 {
		t.Skip("needs userfaultfd, which emulators and sandboxes have not:", errno)
	}
	faults := os.NewFile(fd, "userfaultfd")
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer unix.Munmap(page)
	const apiCall, registerCall = 0xc018aa3f, 0xc020aa00 // UFFDIO_API, UFFDIO_REGISTER
	api, missing := [3]uint64{0xaa}, [4]uint64{uint64(uintptr(unsafe.Pointer(&page[0]))), 4096, 1}
	_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, apiCall, uintptr(unsafe.Pointer(&api)))
	require.Zero(t, errno)
	_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, registerCall, uintptr(unsafe.Pointer(&missing)))
	require.Zero(t, errno)

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	conn, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	shown, err := conn.(*net.TCPConn).File()
	require.NoError(t, err)
	defer shown.Close()
	written := hang.Start(t, func() { shown.Write(page) })
	defer written()
	defer faults.Close() // the memory comes
	_, err = faults.Read(make([]byte, 32))
	require.NoError(t, err, "the write has begun")
	comes := time.AfterFunc(hang.Time, func() { faults.Close() }) // or nothing would go on
	require.False(t, UnixSocket{Address: "@a"}.leadsHere(int(shown.Fd())))
	require.True(t, comes.Stop(), "it has waited")
}

func TestAtAUnixSocketQPsAreConnected(t *testing.T) {
	path := t.TempDir() + "/socket"
	s, l := listenAtUnix(t, path)
	f := New(Config{}).(*fabric).At(s)
	r, err := f.Resolve(cmtest.Within(t), UnixSocketAddr)
	require.NoError(t, err)
	accepted := make(chan error)
	go func() {
		req, err := l.Accept(cmtest.Within(t))
		if err == nil {
			var c rcm.Conn
			if c, err = req.Accept(cmtest.Within(t), onSoft().NewSide(t).QP(t), rcm.ConnParam{}); err == nil {
				defer c.Disconnect()
			}
		}
		accepted <- err
	}()
	c, err := r.Connect(cmtest.Within(t), onSoft().NewSide(t).QP(t), rcm.ConnParam{})
	require.NoError(t, err)
	require.NoError(t, <-accepted)
	require.NoError(t, c.Disconnect())

	require.NoError(t, os.Remove(path))
	r, err = f.Resolve(cmtest.Within(t), UnixSocketAddr)
	require.NoError(t, err)
	_, err = r.Connect(cmtest.Within(t), onSoft().NewSide(t).QP(t), rcm.ConnParam{})
	require.ErrorIs(t, err, rcm.ErrNoListener)
	require.ErrorIs(t, err, unix.ENOENT)
}

// A process that has taken the name beside a socket at which another one listens gets no
// request, whatever it says.
func TestAtAUnixSocketADialerComesToWhoListensThere(t *testing.T) {
	path := t.TempDir() + "/socket"
	cmtest.StartChild(t, 0, "plain", path)
	s, err := UnixSocketAt("unix", path)
	require.NoError(t, err)
	squatter, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: s.name()})
	require.NoError(t, err)
	defer squatter.Close()
	r, err := New(Config{}).(*fabric).At(s).Resolve(cmtest.Within(t), UnixSocketAddr)
	require.NoError(t, err)
	conn, err := squatter.AcceptUnix()
	require.NoError(t, err)
	defer conn.Close()
	peer := speaker{conn, t}
	peer.say((&handshake.Message{Kind: handshake.KindShow}).AppendTo(nil))
	_, err = r.Connect(cmtest.Within(t), onSoft().NewSide(t).QP(t), rcm.ConnParam{})
	require.ErrorIs(t, err, rcm.ErrPeerDenied)
	require.ErrorContains(t, err, "beside it")
	peer.awaitEnd()
}

// Nor does it wait for what comes over the connection that it shows.
func TestAtAUnixSocketADialerDoesNotWaitForWhatItIsSent(t *testing.T) {
	for name, old := range map[string]bool{"with SO_PASSRIGHTS": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			passrights.Missing.Store(old)
			defer passrights.Missing.Store(false)
			path := t.TempDir() + "/socket"
			plain, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
			require.NoError(t, err)
			defer plain.Close()
			s, err := UnixSocketAt("unix", path)
			require.NoError(t, err)
			beside, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: s.name()})
			require.NoError(t, err)
			defer beside.Close()
			r, err := New(Config{}).(*fabric).At(s).Resolve(cmtest.Within(t), UnixSocketAddr)
			require.NoError(t, err)
			conn, err := beside.AcceptUnix()
			require.NoError(t, err)
			defer conn.Close()
			qp := onSoft().NewSide(t).QP(t)
			connected := hang.Start(t, func() {
				_, err := r.Connect(cmtest.Within(t), qp, rcm.ConnParam{})
				assert.ErrorIs(t, err, errHungUp)
			})
			shown, err := plain.AcceptUnix()
			require.NoError(t, err)
			defer shown.Close()
			fd, end := linger.Socket(t)
			if _, _, err = shown.WriteMsgUnix([]byte("x"), unix.UnixRights(fd), nil); err != nil {
				require.False(t, old, err) // the kernel refuses it
				end()
			}
			unix.Close(fd)
			conn.Close()
			connected()
		})
	}
}

func init() {
	cmtest.Roles["plain"] = func(args []string) error {
		ln, err := net.Listen("unix", args[0])
		if err != nil {
			return err
		}
		defer ln.Close()
		cmtest.UntilStdinEnds()
		return nil
	}
}

func TestNamesBesideUnixSocketsDiffer(t *testing.T) {
	long := "@" + string(make([]byte, 106))
	names := make(map[string]bool)
	for _, s := range []UnixSocket{{Address: "@a"}, {Address: "@b"}, {Address: long}, {Address: "/a", device: 1, inode: 23}, {Address: "/a", device: 12, inode: 3}, {Address: "@a", Packets: true}, {Address: long, Packets: true}, {Address: "/a", Packets: true, device: 1, inode: 23}} {
		require.Less(t, len(s.name()), 108)
		names[s.name()] = true
	}
	require.Len(t, names, 8)
	require.Equal(t, UnixSocket{Address: "/a", device: 1, inode: 2}.name(), UnixSocket{Address: "a", device: 1, inode: 2}.name())
}

// What is not known of a socket is asked again later.
func TestWithoutDescriptorsAGivenSocketIsNotGivenUp(t *testing.T) {
	path := t.TempDir() + "/socket"
	ln, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer ln.Close()
	s, err := UnixSocketAt("unix", path)
	require.NoError(t, err)
	f := New(Config{}).(*fabric).At(s).(*fabric).Given(ln.(*net.UnixListener)).(*fabric)
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}))
	err = f.claim()
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	require.ErrorIs(t, err, unix.EMFILE)
	require.NotErrorIs(t, err, ErrNotReached)
	require.NoError(t, f.claim())
}
