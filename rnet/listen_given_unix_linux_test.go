package rnet

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/internal/skip"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

// asFile is a Unix listener as a process has it that was given its descriptor.
func asFile(t *testing.T, ln *net.UnixListener) *net.UnixListener {
	t.Helper()
	file, err := ln.File()
	require.NoError(t, err)
	defer file.Close()
	given, err := net.FileListener(file)
	require.NoError(t, err)
	t.Cleanup(func() { given.Close() })
	return given.(*net.UnixListener)
}

func plainUnixListener(t *testing.T, network, address string) *net.UnixListener {
	t.Helper()
	ln, err := net.ListenUnix(network, &net.UnixAddr{Name: address, Net: network})
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	return ln
}

func TestAGivenUnixListenerServesStreamsAndPlainPeers(t *testing.T) {
	leak.Check(t)
	for _, network := range []string{"unix", "unixpacket"} {
		for kind, address := range unixAddresses(t) {
			for _, how := range []string{"own", "file"} {
				t.Run(network+" "+kind+" "+how, func(t *testing.T) {
					given := plainUnixListener(t, network, address)
					if how == "file" {
						given = asFile(t, given)
					}
					made, err := NewListener(given)
					require.NoError(t, err)
					defer made.Close()
					require.IsType(t, (*Listener)(nil), made)
					ln := made.(*Listener)
					require.Equal(t, given.Addr(), ln.Addr())
					for _, c := range []struct {
						transport Transport
						want      string
					}{{Soft, carriedBy[network].stream}, {TCP, carriedBy[network].plain}, {Soft, carriedBy[network].stream}} {
						d := patient()
						d.Transport = c.transport
						dialed, err := d.Dial(network, address)
						require.NoError(t, err)
						accepted, err := ln.Accept()
						require.NoError(t, err)
						require.Equal(t, c.want, typeName(dialed))
						require.Equal(t, c.want, typeName(accepted))
						exchange(t, dialed, accepted)
						require.NoError(t, dialed.Close())
						require.NoError(t, accepted.Close())
					}
					require.EqualValues(t, 1, ln.readStats().TCP, "what only shows who is there is no connection")
					file, err := ln.File()
					require.NoError(t, err)
					copied, err := net.FileListener(file)
					require.NoError(t, err)
					require.NoError(t, file.Close())
					require.Equal(t, given.Addr(), copied.Addr())
					require.NoError(t, copied.Close())
					require.NoError(t, ln.SetDeadline(time.Unix(1, 0)))
					_, err = ln.Accept()
					require.ErrorIs(t, err, os.ErrDeadlineExceeded)
					require.NoError(t, ln.Close())
					_, err = given.Accept()
					require.ErrorIs(t, err, net.ErrClosed)
				})
			}
		}
	}
}

func TestAGivenUnixListenerIsFoundByOtherNamesOfItsPath(t *testing.T) {
	path := unixPath(t)
	ln, err := NewListener(plainUnixListener(t, "unix", path))
	require.NoError(t, err)
	defer ln.Close()
	require.NoError(t, os.Symlink(path, path+".link"))
	require.NoError(t, os.Link(path, path+".hard"))
	for _, name := range []string{path + ".link", path + ".hard"} {
		c, err := (&Dialer{Transport: Soft}).Dial("unix", name)
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
}

// Whether the file goes with the listener is what the one that was given says.
func TestAGivenUnixListenerUnlinksItsFileAsItWouldHave(t *testing.T) {
	for _, c := range []struct {
		name  string
		given func(path string) *net.UnixListener
		left  bool
	}{
		{"own", func(path string) *net.UnixListener { return plainUnixListener(t, "unix", path) }, false},
		{"own that is to stay", func(path string) *net.UnixListener {
			ln := plainUnixListener(t, "unix", path)
			ln.SetUnlinkOnClose(false)
			return ln
		}, true},
		{"file", func(path string) *net.UnixListener { return asFile(t, plainUnixListener(t, "unix", path)) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := unixPath(t)
			ln, err := NewListener(c.given(path))
			require.NoError(t, err)
			require.IsType(t, (*Listener)(nil), ln)
			require.NoError(t, ln.Close())
			_, err = os.Stat(path)
			require.Equal(t, c.left, !errors.Is(err, fs.ErrNotExist))
		})
	}
}

func TestOfAGivenUnixListenerTheTransportIsHeeded(t *testing.T) {
	for _, transport := range []Transport{TCP, RDMA} {
		given := plainUnixListener(t, "unix", unixPath(t))
		ln, err := (&ListenConfig{Transport: transport}).NewListener(given)
		require.NoError(t, err)
		require.Same(t, given, ln)
	}
	given := plainUnixListener(t, "unix", unixPath(t))
	ln, err := (&ListenConfig{Transport: Soft}).NewListener(given)
	require.NoError(t, err)
	defer ln.Close()
	c, err := net.Dial("unix", given.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Read(make([]byte, 1))
	require.Error(t, err, "a plain peer is hung up on")

	_, err = NewListener(struct{ net.Listener }{plainUnixListener(t, "unix", unixPath(t))})
	require.ErrorContains(t, err, "does not show its socket")
	closed := plainUnixListener(t, "unix", unixPath(t))
	require.NoError(t, closed.Close())
	_, err = NewListener(closed)
	require.ErrorIs(t, err, net.ErrClosed)
}

// staysPlain has NewListener leave a listener alone, and says so where streams are demanded.
func staysPlain(t *testing.T, given *net.UnixListener) {
	t.Helper()
	ln, err := NewListener(given)
	require.NoError(t, err)
	require.Same(t, given, ln)
	_, err = (&ListenConfig{Transport: Soft}).NewListener(given)
	require.ErrorContains(t, err, "cannot be reached at its address")
	require.NoError(t, given.SetDeadline(time.Unix(1, 0)))
	_, err = given.Accept()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "it is closed")
}

func TestAGivenUnixListenerThatItsPathDoesNotLeadToStaysPlain(t *testing.T) {
	t.Run("a path in another directory", func(t *testing.T) {
		path := unixPath(t)
		given := plainUnixListener(t, "unix", path)
		given.SetUnlinkOnClose(false)
		require.NoError(t, os.Rename(path, path+".elsewhere"))
		ln, err := NewListener(given)
		require.NoError(t, err)
		require.Same(t, given, ln)
		_, err = (&ListenConfig{Transport: Soft}).NewListener(given)
		require.ErrorIs(t, err, fs.ErrNotExist)
	})
	t.Run("a path of another process", func(t *testing.T) {
		path := unixPath(t)
		given := plainUnixListener(t, "unix", path)
		given.SetUnlinkOnClose(false)
		require.NoError(t, os.Remove(path))
		child := roles.Start(t, "listen-unix", "rnet", path)
		require.Equal(t, "listens", child.Line(t))
		held, err := NewListener(given)
		require.NoError(t, err)
		defer held.Close()
		c, err := patient().Dial("unix", path)
		require.NoError(t, err)
		defer c.Close()
		require.IsType(t, (*Conn)(nil), c, "the other process has lost its streams")
		c.Close()
		child.Kill()
		hang.Start(t, held.(*Listener).work.Wait)() // for the other one's place, which is not ours
	})
	t.Run("a path of another process that has no streams", func(t *testing.T) {
		path := unixPath(t)
		given := plainUnixListener(t, "unix", path)
		given.SetUnlinkOnClose(false)
		require.NoError(t, os.Remove(path))
		child := roles.Start(t, "listen-unix", "net", path)
		require.Equal(t, "listens", child.Line(t))
		staysPlain(t, given)
		file, err := copyOf(given)
		require.NoError(t, err)
		defer file.Close()
		other := roles.StartAs(t, func(cmd *exec.Cmd) { cmd.ExtraFiles = []*os.File{file} }, "type-of-given")
		require.Equal(t, "*net.UnixListener", other.Line(t))
		listens, err := unix.GetsockoptUcred(int(file.Fd()), unix.SOL_SOCKET, unix.SO_PEERCRED)
		require.NoError(t, err)
		require.EqualValues(t, os.Getpid(), listens.Pid, "the other one is named, and does not serve")
	})
}

func TestAGivenUnixListenerOfAnotherNetworkNamespaceStaysPlain(t *testing.T) {
	var given *net.UnixListener
	var err error
	// The thread comes back: if it is the first one, what /proc/self says of the network
	// is of its namespace.
	runtime.LockOSThread()
	own, openErr := os.Open("/proc/thread-self/ns/net")
	require.NoError(t, openErr)
	defer own.Close()
	if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
		given, err = net.ListenUnix("unix", &net.UnixAddr{Name: "@ramjet-test/" + strconv.Itoa(os.Getpid()) + t.Name(), Net: "unix"})
		require.NoError(t, unix.Setns(int(own.Fd()), unix.CLONE_NEWNET))
	}
	runtime.UnlockOSThread()
	if errors.Is(err, unix.EPERM) {
		skip.Because(t, fmt.Errorf("it needs the rights of root: %w", err))
	}
	require.NoError(t, err)
	defer given.Close()
	staysPlain(t, given)
}

func TestAGivenUnixListenerThatItsUserMayNotReachStaysPlain(t *testing.T) {
	path := unixPath(t)
	given := plainUnixListener(t, "unix", path)
	require.NoError(t, os.Chmod(path, 0o600))
	file, err := given.File()
	require.NoError(t, err)
	defer file.Close()
	typeThere := func() string {
		child := roles.StartIfAllowed(t, func(cmd *exec.Cmd) {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
			cmd.ExtraFiles = []*os.File{file}
		}, "type-of-given")
		defer child.Stop()
		return child.Line(t)
	}
	require.Equal(t, "*net.UnixListener", typeThere())
	require.NoError(t, os.Chmod(path, 0o666))
	require.Equal(t, "*rnet.Listener", typeThere())
}

func init() {
	roles.Add("type-of-given", func([]string) error {
		ln, err := givenListener()
		if err != nil {
			return err
		}
		defer ln.Close()
		fmt.Println(typeName(ln))
		return nil
	})
	// until SIGHUP; says which process it is, and by what
	roles.Add("serve-given", func([]string) error {
		ended := make(chan os.Signal, 1)
		signal.Notify(ended, unix.SIGHUP)
		ln, err := givenListener()
		if err != nil {
			return err
		}
		fmt.Println("ready")
		closed := make(chan error)
		go func() {
			<-ended
			closed <- ln.Close()
		}()
		for {
			c, err := ln.Accept()
			if err != nil {
				return <-closed
			}
			go func() {
				fmt.Fprintf(c, "%d %s", os.Getpid(), typeName(c))
				io.Copy(io.Discard, c) // ended by the peer
				c.Close()
			}()
		}
	})
}

// serveThere starts a process that serves at a socket that it is given.
func serveThere(t *testing.T, file *os.File) *roles.Process {
	t.Helper()
	p := roles.StartAs(t, func(cmd *exec.Cmd) { cmd.ExtraFiles = []*os.File{file} }, "serve-given")
	require.Equal(t, "ready", p.Line(t))
	return p
}

// dialThere dials, and returns the connection and which process is there by what.
func dialThere(t *testing.T, network, address string) (net.Conn, string) {
	t.Helper()
	c, err := patient().Dial(network, address)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	got := make([]byte, 100)
	n, err := c.Read(got) // one Write, of one frame
	require.NoError(t, err, "%T", c)
	return c, string(got[:n])
}

func streamOf(p *roles.Process, network string) string {
	return fmt.Sprint(p.Cmd.Process.Pid, " ", carriedBy[network].stream)
}

// awaitStreamTo dials until a stream leads to a process, and returns that. All dials before
// reach one that serves.
func awaitStreamTo(t *testing.T, network, address string, p *roles.Process) (c net.Conn) {
	t.Helper()
	want := streamOf(p, network)
	hang.Eventually(t, want, func() bool {
		var got string
		c, got = dialThere(t, network, address)
		return got == want
	})
	return c
}

// Processes that share a socket serve streams one after the other. None of them takes those of
// one that serves.
func TestAGivenUnixSocketGoesToTheNextProcess(t *testing.T) {
	for network, end := range map[string]func(p *roles.Process){
		"unix":       func(p *roles.Process) { p.Cmd.Process.Signal(unix.SIGHUP) },
		"unixpacket": (*roles.Process).Kill,
	} {
		t.Run(network, func(t *testing.T) {
			path := unixPath(t)
			// which stays non-blocking, for all who share it
			file, err := copyOf(plainUnixListener(t, network, path))
			require.NoError(t, err)
			defer file.Close()
			first := serveThere(t, file)
			open := awaitStreamTo(t, network, path, first)
			for range 2 {
				next := serveThere(t, file)
				for range 3 {
					_, got := dialThere(t, network, path)
					require.Equal(t, streamOf(first, network), got)
				}
				end(first)
				_, err := open.Read(make([]byte, 1))
				require.Error(t, err, "it lives on without its process")
				open = awaitStreamTo(t, network, path, next)
				first = next
			}
		})
	}
}

// A listener that was opened here is handed on in the same way.
func TestAUnixListenerOfOursGoesToTheNextProcess(t *testing.T) {
	path := unixPath(t)
	ln := listenUnix(t, path)
	ln.SetUnlinkOnClose(false)
	file, err := ln.File()
	require.NoError(t, err)
	defer file.Close()
	next := serveThere(t, file)
	for range 3 {
		dialed, accepted := unixStreams(t, ln)
		exchange(t, dialed, accepted)
	}
	require.NoError(t, ln.Close())
	awaitStreamTo(t, "unix", path, next)
}

// A peer that waits in the socket's queue, since before the program ran, is served.
func TestWhoWaitsInTheQueueOfAGivenUnixSocketIsServed(t *testing.T) {
	path := unixPath(t)
	given := plainUnixListener(t, "unix", path)
	early, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer early.Close()
	ln, err := NewListener(asFile(t, given))
	require.NoError(t, err)
	defer ln.Close()
	accepted, err := ln.Accept()
	require.NoError(t, err)
	defer accepted.Close()
	exchange(t, early, accepted)
	await := hang.Start(t, func() {
		c, err := (&Dialer{Transport: Soft}).Dial("unix", path)
		if assert.NoError(t, err) {
			io.Copy(io.Discard, c)
			c.Close()
		}
	})
	later, err := ln.Accept()
	require.NoError(t, err)
	require.IsType(t, (*Conn)(nil), later)
	require.NoError(t, later.Close())
	await()
}
