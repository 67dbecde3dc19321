package rnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/internal/linger"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/rnet/internal/settings"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
)

// unixPath is the path of a socket in a directory that others may search.
func unixPath(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		require.NoError(t, os.Chmod(d, 0o755))
	}
	return filepath.Join(dir, "socket")
}

func listenUnix(t testing.TB, address string) *Listener {
	t.Helper()
	return listenAt(t, &ListenConfig{}, "unix", address)
}

func listenAt(t testing.TB, lc *ListenConfig, network, address string) *Listener {
	t.Helper()
	ln, err := lc.Listen(t.Context(), network, address)
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	require.IsType(t, (*Listener)(nil), ln)
	return ln.(*Listener)
}

// unixStreams makes a stream through ln.
func unixStreams(t testing.TB, ln net.Listener) (dialed, accepted *Conn) {
	t.Helper()
	c, err := patient().Dial("unix", ln.Addr().String())
	require.NoError(t, err)
	s, err := ln.Accept()
	require.NoError(t, err)
	t.Cleanup(func() {
		c.Close()
		s.Close()
	})
	require.IsType(t, (*Conn)(nil), c, "%v", Explain(ln.Addr().String()))
	require.IsType(t, (*Conn)(nil), s)
	return c.(*Conn), s.(*Conn)
}

// unixAddresses are addresses of both kinds, none of which is in use.
func unixAddresses(t *testing.T) map[string]string {
	return map[string]string{"path": unixPath(t), "abstract": "@ramjet-test/" + strconv.Itoa(os.Getpid()) + t.Name()}
}

func TestStreamsAtAUnixSocketPassNettest(t *testing.T) { passNettestAt(t, "unix") }

// passNettestAt runs nettest with both ends in one process, at a socket of each kind of address.
func passNettestAt(t *testing.T, network string) {
	leak.Check(t)
	for kind, address := range unixAddresses(t) {
		t.Run(kind, func(t *testing.T) {
			ln := listenAt(t, &ListenConfig{}, network, address)
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				if c1, err = (&Dialer{Transport: Soft}).Dial(network, address); err != nil {
					return nil, nil, nil, err
				}
				if c2, err = ln.Accept(); err != nil {
					c1.Close()
					return nil, nil, nil, err
				}
				return c1, c2, func() { c1.Close(); c2.Close() }, nil
			})
		})
	}
}

func TestStreamsAtAUnixSocketPassNettestBetweenProcesses(t *testing.T) {
	passNettestThroughAnother(t, "unix")
}

// passNettestThroughAnother runs nettest with another process in the middle, which relays.
func passNettestThroughAnother(t *testing.T, network string) {
	leak.Check(t)
	there, back := unixPath(t), unixPath(t)
	ln := listenAt(t, &ListenConfig{}, network, back)
	child := roles.Start(t, "relay-unix", network, there, back)
	require.Equal(t, "listens", child.Line(t))
	nettest.TestConn(t, traffic.PipesThrough(func() (net.Conn, error) {
		return (&Dialer{Transport: Soft}).Dial(network, there)
	}, ln))
	child.Stop()
}

func init() {
	roles.Add("relay-unix", func(args []string) error {
		ln, err := Listen(args[0], args[1])
		if err != nil {
			return err
		}
		fmt.Println("listens")
		return traffic.Relay(ln, func() (net.Conn, error) { return (&Dialer{Transport: Soft}).Dial(args[0], args[2]) })
	})
	roles.Add("dial-unix", func(args []string) error {
		d := patient()
		d.Transport = Transport(args[0])
		c, err := d.Dial("unix", args[1])
		if err != nil {
			fmt.Println(err)
			return nil
		}
		defer c.Close()
		if _, err := c.Write([]byte("x")); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			return err
		}
		fmt.Println(typeName(c))
		return nil
	})
	roles.Add("listen-unix", func(args []string) error { // as package net, or as this one
		listen := net.Listen
		if args[0] == "rnet" {
			listen = Listen
		}
		ln, err := listen("unix", args[1])
		if err != nil {
			return err
		}
		fmt.Println("listens")
		echoAll(ln) // ends with the process
		return nil
	})
}

func TestPlainPeersOfAUnixSocketAreServed(t *testing.T) {
	for kind, address := range unixAddresses(t) {
		t.Run(kind, func(t *testing.T) {
			ln := listenUnix(t, address)
			keep, _ := unixStreams(t, ln)
			defer keep.Close()
			for range 3 {
				c, err := net.Dial("unix", address)
				require.NoError(t, err)
				defer c.Close()
				s, err := ln.Accept()
				require.NoError(t, err)
				defer s.Close()
				require.IsType(t, (*net.UnixConn)(nil), s)
				_, err = s.Write([]byte("x"))
				require.NoError(t, err)
				_, err = io.ReadFull(c, make([]byte, 1))
				require.NoError(t, err)
			}
			require.EqualValues(t, 3, ln.readStats().TCP, "a connection that only shows who dials is none")
			require.EqualValues(t, 1, ln.readStats().Streams)
		})
	}
}

func TestAServerWithoutStreamsIsReachedAtItsUnixSocket(t *testing.T) {
	for kind, address := range unixAddresses(t) {
		t.Run(kind, func(t *testing.T) {
			ln, err := net.Listen("unix", address)
			require.NoError(t, err)
			defer ln.Close()
			c, err := Dial("unix", address)
			require.NoError(t, err)
			defer c.Close()
			require.IsType(t, (*net.UnixConn)(nil), c)
			s, err := ln.Accept()
			require.NoError(t, err)
			s.Close()
			last := Explain(address)
			require.Equal(t, Unix, last[len(last)-1].Transport)
			require.Equal(t, "no-listener", last[len(last)-1].Reason)
		})
	}
}

// What a program sees of a Unix socket is what it sees with package net.
func TestUnixSocketsLookAsWithPackageNet(t *testing.T) {
	look := func(t *testing.T, listen func(network, address string) (net.Listener, error), dial func(network, address string) (net.Conn, error), path string) (seen []string) {
		note := func(v ...any) { seen = append(seen, fmt.Sprint(v...)) }
		noteErr := func(what string, err error) {
			var op *net.OpError
			require.ErrorAs(t, err, &op, what)
			note(what, op.Op, op.Net, op.Source, op.Addr, errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.EPIPE))
		}
		_, err := dial("unix", path)
		note("nobody: ", err)
		ln, err := listen("unix", path)
		require.NoError(t, err)
		_, err = listen("unix", path)
		note("twice: ", err)
		note(fmt.Sprintf("%T %v %v", ln.Addr(), ln.Addr().Network(), ln.Addr()))
		c, err := dial("unix", path)
		require.NoError(t, err)
		s, err := ln.Accept()
		require.NoError(t, err)
		for _, a := range []net.Addr{c.LocalAddr(), c.RemoteAddr(), s.LocalAddr(), s.RemoteAddr()} {
			note(fmt.Sprintf("%T %v %q", a, a.Network(), a.String()))
		}
		require.NoError(t, c.SetReadDeadline(time.Unix(1, 0)))
		_, err = c.Read(make([]byte, 1))
		noteErr("deadline: ", err)
		require.NoError(t, c.(interface{ CloseWrite() error }).CloseWrite())
		_, err = c.Write([]byte("x"))
		noteErr("closed half: ", err)
		_, err = s.Read(make([]byte, 1))
		note("end: ", err)
		require.NoError(t, s.Close())
		_, err = s.Read(make([]byte, 1))
		noteErr("closed: ", err)
		note(c.Close(), " ", strings.HasPrefix(c.Close().Error(), "close unix"))
		require.NoError(t, ln.Close())
		_, err = os.Stat(path)
		note("file is gone: ", errors.Is(err, fs.ErrNotExist))
		_, err = ln.Accept()
		noteErr("no listener: ", err)

		ln, err = listen("unix", path)
		require.NoError(t, err)
		ln.(interface{ SetUnlinkOnClose(bool) }).SetUnlinkOnClose(false)
		require.NoError(t, ln.Close())
		_, err = os.Stat(path)
		note("file is left: ", err)
		_, err = dial("unix", path)
		note("stale: ", err)
		_, err = listen("unix", path)
		note("stale: ", err)
		require.NoError(t, os.Remove(path))
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		_, err = dial("unix", path)
		note("a file: ", err)
		require.NoError(t, os.Remove(path))
		return seen
	}
	path := unixPath(t)
	want := look(t, net.Listen, net.Dial, path)
	require.Equal(t, want, look(t, Listen, patient().Dial, path))
}

// Who listens at the path is who is reached, whatever session there is.
func TestADialFollowsThePath(t *testing.T) {
	path := unixPath(t)
	first := listenUnix(t, path)
	keep, _ := unixStreams(t, first)
	defer keep.Close()
	require.NoError(t, os.Rename(path, path+".old"))
	_, err := patient().Dial("unix", path)
	require.ErrorIs(t, err, syscall.ENOENT)

	second := listenUnix(t, path) // while the first listens on, at the other name
	c, s := unixStreams(t, second)
	require.NotSame(t, keep.s, c.s)
	exchange(t, c, s)

	old, err := patient().Dial("unix", path+".old")
	require.NoError(t, err)
	defer old.Close()
	accepted, err := first.Accept()
	require.NoError(t, err)
	defer accepted.Close()
	require.IsType(t, (*Conn)(nil), old)
	exchange(t, old, accepted)

	require.NoError(t, os.Remove(path))
	plain, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer plain.Close()
	to, err := patient().Dial("unix", path)
	require.NoError(t, err)
	defer to.Close()
	require.IsType(t, (*net.UnixConn)(nil), to)
}

// exchange sends a byte each way.
func exchange(t *testing.T, c, s net.Conn) {
	t.Helper()
	for _, to := range [][2]net.Conn{{c, s}, {s, c}} {
		_, err := to[0].Write([]byte("x"))
		require.NoError(t, err)
		_, err = io.ReadFull(to[1], make([]byte, 1))
		require.NoError(t, err)
	}
}

func TestAServerThatStartsAgainTakesItsUnixSocketOver(t *testing.T) {
	path := unixPath(t)
	for range 2 {
		child := roles.Start(t, "listen-unix", "rnet", path)
		require.Equal(t, "listens", child.Line(t))
		c, err := patient().Dial("unix", path)
		require.NoError(t, err)
		require.IsType(t, (*Conn)(nil), c, "%v", Explain(path))
		child.Kill()
		child.Stop()
		_, err = c.Read(make([]byte, 1))
		require.Error(t, err)
		c.Close()
		_, err = patient().Dial("unix", path)
		require.ErrorIs(t, err, syscall.ECONNREFUSED, "the file that a dead process has left")
		require.NoError(t, os.Remove(path))
	}
}

// A session says nothing of who may connect to the path later.
func TestPermissionOfThePathIsAskedAtEachDial(t *testing.T) {
	path := unixPath(t)
	ln := listenUnix(t, path)
	go echoAll(ln) // ends with the test
	require.NoError(t, os.Chmod(path, 0o666))
	user := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	asUser := func(transport Transport) string {
		child := roles.StartIfAllowed(t, func(cmd *exec.Cmd) { cmd.SysProcAttr = user }, "dial-unix", string(transport), path)
		defer child.Stop()
		return child.Line(t)
	}
	require.Equal(t, "*net.UnixConn", asUser(Auto), "another user has no streams")
	require.Contains(t, asUser(Soft), "peer-denied")
	require.NoError(t, os.Chmod(path, 0o600))
	require.Contains(t, asUser(Auto), "permission denied")
	require.Contains(t, asUser(Soft), "permission denied [permission]")
	require.NoError(t, os.Chmod(path, 0o666))
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o700))
	require.Contains(t, asUser(Auto), "permission denied")
}

// The same, of the same user and with a session that lives.
func TestASessionDoesNotOutliveThePermissionOfItsPath(t *testing.T) {
	dir := unixPath(t)
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.Chown(dir, 1000, 1000))
	child := roles.StartIfAllowed(t, func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	}, "unix-chmod", dir+"/socket")
	defer child.Stop()
	require.Equal(t, "*rnet.Conn", child.Line(t))
	require.Contains(t, child.Line(t), "permission denied")
	require.Equal(t, "*rnet.Conn", child.Line(t))
}

func init() {
	roles.Add("unix-chmod", func(args []string) error {
		ln, err := Listen("unix", args[0])
		if err != nil {
			return err
		}
		defer ln.Close()
		for _, mode := range []fs.FileMode{0o600, 0o400, 0o600} {
			if err := os.Chmod(args[0], mode); err != nil {
				return err
			}
			c, err := patient().Dial("unix", args[0])
			if err != nil {
				fmt.Println(err)
				continue
			}
			defer c.Close()
			fmt.Println(typeName(c))
		}
		return nil
	})
}

// A process of the same user that does not see the path finds the name beside the socket all
// the same. It may not come that way.
func TestWhoDoesNotSeeThePathDoesNotReachItsServer(t *testing.T) {
	path := unixPath(t)
	ln := listenUnix(t, path)
	go echoAll(ln) // ends with the test
	socket, err := softcm.UnixSocketAt("unix", path)
	require.NoError(t, err)
	require.NoError(t, os.Rename(path, path+".elsewhere"))
	set, err := patient().settings()
	require.NoError(t, err)
	d := attempt{d: patient(), set: *set, network: "unix", address: path, socket: socket}
	_, _, err = pool.open(t.Context(), d.key(), softcm.UnixSocketAddr, &d, openOptions{})
	require.ErrorIs(t, err, syscall.ENOENT)
	require.NoError(t, os.Rename(path+".elsewhere", path))
	c, _, err := pool.open(t.Context(), d.key(), softcm.UnixSocketAddr, &d, openOptions{})
	require.NoError(t, err)
	c.Close()
}

// Nor does a dial reach a process that has taken the name beside somebody else's socket.
func TestWhoTakesTheNameBesideAUnixSocketIsNotDialed(t *testing.T) {
	path := unixPath(t)
	child := roles.Start(t, "listen-unix", "net", path)
	require.Equal(t, "listens", child.Line(t))
	l := newListener(&net.UnixAddr{Name: path, Net: "unix"}, "unix", mustSettings(t, &ListenConfig{}), nil)
	var err error
	l.socket, err = softcm.UnixSocketAt("unix", path)
	require.NoError(t, err)
	require.NoError(t, l.listenFabrics(nil, false))
	defer l.Close()
	c, err := patient().Dial("unix", path)
	require.NoError(t, err)
	defer c.Close()
	require.IsType(t, (*net.UnixConn)(nil), c)
	last := Explain(path)
	require.Equal(t, "peer-denied", last[len(last)-1].Reason, "%v", last)
	_, err = c.Write([]byte("x"))
	require.NoError(t, err)
	_, err = io.ReadFull(c, make([]byte, 1))
	require.NoError(t, err, "from the process that listens at the path")
	child.Stop()
}

func mustSettings(t *testing.T, lc *ListenConfig) (set settings.Settings) {
	t.Helper()
	set, err := lc.settings()
	require.NoError(t, err)
	return set
}

func TestHTTPGoesOverAUnixSocket(t *testing.T) {
	path := unixPath(t)
	ln := listenUnix(t, path)
	server := http.Server{Handler: http.HandlerFunc(echoChecked)}
	served := hang.Start(t, func() { server.Serve(ln) })
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&Dialer{Transport: Soft}).DialContext(ctx, "unix", path)
	}}}
	for i := range times(200, 20000) {
		require.NoError(t, requestChecked(&client, "http://socket/", make([]byte, 97*i)))
	}
	plain := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return net.Dial("unix", path)
	}}}
	require.NoError(t, requestChecked(&plain, "http://socket/", []byte("plain")))
	client.CloseIdleConnections()
	plain.CloseIdleConnections()
	require.NoError(t, server.Shutdown(t.Context()))
	served()
}

func TestStatisticsNameTheUnixSocket(t *testing.T) {
	path := unixPath(t)
	ln := listenUnix(t, path)
	c, s := unixStreams(t, ln)
	require.Equal(t, path, c.Stats().Unix)
	require.Equal(t, path, s.Stats().Unix)
	sessions := 0
	for _, one := range ReadStats().Sessions {
		if one.Unix == path {
			sessions++
		}
	}
	require.Equal(t, 2, sessions, "both ends are here")
	require.Equal(t, path, ln.readStats().Unix)
	require.False(t, ln.readStats().Addr.IsValid())
	last := Explain(path)
	require.Equal(t, "soft", last[len(last)-1].String())
}

func TestWhatIsDemandedOfAUnixSocket(t *testing.T) {
	path := unixPath(t)
	for transport, want := range map[Transport]any{Soft: (*Listener)(nil), TCP: (*net.UnixListener)(nil), RDMA: (*net.UnixListener)(nil)} {
		ln, err := (&ListenConfig{Transport: transport}).Listen(t.Context(), "unix", path)
		require.NoError(t, err)
		require.IsType(t, want, ln)
		require.NoError(t, ln.Close())
	}
	ln, err := (&ListenConfig{Transport: Soft}).Listen(t.Context(), "unix", path)
	require.NoError(t, err)
	defer ln.Close()
	for _, transport := range []Transport{TCP, RDMA} {
		c, err := (&Dialer{Transport: transport}).Dial("unix", path)
		require.NoError(t, err)
		require.IsType(t, (*net.UnixConn)(nil), c)
		_, err = c.Read(make([]byte, 1)) // such a listener ends it
		require.Error(t, err)
		c.Close()
	}
	named, err := (&Dialer{LocalAddr: &net.UnixAddr{Name: path + ".client", Net: "unix"}}).Dial("unix", path)
	require.NoError(t, err)
	require.IsType(t, (*net.UnixConn)(nil), named)
	named.Close()
	asked := 0
	c, err := (&Dialer{Control: func(string, string, syscall.RawConn) error { asked++; return nil }}).Dial("unix", path)
	require.NoError(t, err)
	require.IsType(t, (*net.UnixConn)(nil), c)
	require.Equal(t, 1, asked)
	c.Close()
	_, err = (&Dialer{Transport: Soft}).Dial("unix", path+".nobody")
	require.Equal(t, fallback.NoListener, fallback.Classify(err))
	require.ErrorIs(t, err, syscall.ENOENT)
}

// Nobody has to show anything: a connection with such a name is dropped, whoever makes it.
func TestConnectionsThatShowAPermissionAreNotAccepted(t *testing.T) {
	path := unixPath(t)
	ln := listenUnix(t, path)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: "@ramjet/unix1/" + t.Name()}))
	require.NoError(t, unix.Connect(fd, &unix.SockaddrUnix{Name: path}))
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer c.Close()
	s, err := ln.Accept()
	require.NoError(t, err)
	defer s.Close()
	exchange(t, c, s)
	n, err := unix.Read(fd, make([]byte, 1))
	require.NoError(t, err)
	require.Zero(t, n)
}

// Whoever may connect to the socket can send something whose last close waits.
func TestAListenerDoesNotWaitForWhatIsSentToItByThoseItDrops(t *testing.T) {
	for name, transport := range map[string]Transport{"who show a permission": Auto, "who are not served without streams": Soft} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			path := unixPath(t)
			plain, err := net.Listen("unix", path)
			require.NoError(t, err)
			defer plain.Close()
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			defer unix.Close(fd)
			require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: "@ramjet/unix1/" + t.Name()}))
			require.NoError(t, unix.Connect(fd, &unix.SockaddrUnix{Name: path}))
			sent, end := linger.Socket(t)
			require.NoError(t, unix.Sendmsg(fd, []byte{1}, unix.UnixRights(sent), nil, 0))
			require.NoError(t, unix.Close(sent)) // the last close is that of the connection
			ln, err := (&ListenConfig{Transport: transport}).NewListener(plain)
			require.NoError(t, err)
			defer ln.Close()
			defer end()
			closed := hang.Start(t, func() {
				c, err := net.Dial("unix", path)
				if assert.NoError(t, err) {
					defer c.Close()
				}
				if transport == Auto {
					s, err := ln.Accept()
					if assert.NoError(t, err) {
						s.Close()
					}
				}
				_, err = c.Read(make([]byte, 1)) // ended by the listener
				assert.Error(t, err)
				assert.NoError(t, ln.Close())
			})
			closed()
		})
	}
}

// Whoever has sent a request must not take the end for an answer.
func TestAPlainPeerOfAListenerWithoutThoseIsReset(t *testing.T) {
	path := unixPath(t)
	plain, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer plain.Close()
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte("x"))
	require.NoError(t, err)
	reset := hang.Start(t, func() {
		_, err := c.Read(make([]byte, 1)) // ended by the listener
		assert.ErrorIs(t, err, syscall.ECONNRESET)
	})
	ln, err := (&ListenConfig{Transport: Soft}).NewListener(plain)
	require.NoError(t, err)
	defer ln.Close()
	reset()
}

// Two servers that start at one moment do: each removes what the last one has left.
func TestListenAtAPathThatIsRemovedMeanwhileIsAsWithPackageNet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	stop := make(chan struct{})
	removing := hang.Start(t, func() {
		for {
			select {
			case <-stop:
				return
			default:
				os.Remove(path)
			}
		}
	})
	defer removing()
	defer close(stop)
	for range 300 {
		ln, err := Listen("unix", path)
		require.NoError(t, err)
		require.NoError(t, ln.Close())
	}
}
