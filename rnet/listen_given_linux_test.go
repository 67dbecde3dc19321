package rnet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/skip"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

func init() { roles.Add("listen-given", serveGiven) }

// serveGiven serves, at a listener that it was given as systemd gives them, whoever
// comes: it says which transport that was.
func serveGiven([]string) error {
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) || os.Getenv("LISTEN_FDS") != "1" {
		return fmt.Errorf("LISTEN_PID=%s LISTEN_FDS=%s", os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"))
	}
	ln, err := givenListener()
	if err != nil {
		return err
	}
	defer ln.Close()
	fmt.Println("ready")
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		fmt.Fprintf(c, "%s", typeName(c))
		c.Close()
	}
}

// givenListener makes a listener of descriptor 3.
func givenListener() (net.Listener, error) {
	file := os.NewFile(3, "given")
	given, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	file.Close()
	return NewListener(given)
}

// told dials an address, and returns what it is told there.
func told(t *testing.T, d Dialer, network, address string) string {
	t.Helper()
	c, err := d.Dial(network, address)
	require.NoError(t, err)
	defer c.Close()
	text, err := io.ReadAll(c)
	require.NoError(t, err)
	return string(text)
}

// systemdLike has a role started as systemd starts a service for a socket. The shell
// knows the process id, which stays the same.
func systemdLike(cmd *exec.Cmd, socket *os.File) {
	cmd.Args = append([]string{"sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"`, "sh"}, cmd.Path)
	cmd.Path = "/bin/sh"
	cmd.ExtraFiles = []*os.File{socket}
}

// carriedBy are the types of a network's connections: of streams, and of those of package net.
var carriedBy = map[string]struct{ stream, plain string }{
	"tcp":        {"*rnet.Conn", "*net.TCPConn"},
	"unix":       {"*rnet.Conn", "*net.UnixConn"},
	"unixpacket": {"*rnet.MessageConn", "*net.UnixConn"},
}

func TestAListenerThatSystemdGivesServesStreams(t *testing.T) {
	for network, want := range carriedBy {
		t.Run(network, func(t *testing.T) {
			given, err := net.Listen(network, addressOf(t, network))
			require.NoError(t, err)
			defer given.Close()
			address := given.Addr().String()
			negatives.Forget(address)
			file, err := given.(interface{ File() (*os.File, error) }).File()
			require.NoError(t, err)
			defer file.Close()
			p := roles.StartAs(t, func(cmd *exec.Cmd) { systemdLike(cmd, file) }, "listen-given")
			require.Equal(t, "ready", p.Line(t))
			require.Equal(t, want.stream, told(t, *patient(), network, address), "%v", Explain(address))
			require.Equal(t, want.plain, told(t, Dialer{Transport: TCP}, network, address))
		})
	}
}

// addressOf returns an address of a network to listen at.
func addressOf(t *testing.T, network string) string {
	if network == "tcp" {
		return closedAddress(t)
	}
	return unixPath(t)
}

// The program of systemd that does so for tests of services, where it is installed.
func TestAServiceThatSystemdActivatesServesStreams(t *testing.T) {
	activate, err := exec.LookPath("systemd-socket-activate")
	skip.Because(t, err)
	for network, want := range carriedBy {
		t.Run(network, func(t *testing.T) {
			address := addressOf(t, network)
			negatives.Forget(address)
			p := roles.StartAs(t, func(cmd *exec.Cmd) {
				args := []string{activate, "--listen=" + address, "--setenv=" + roles.Variable}
				if network == "unixpacket" {
					args = append(args, "--seqpacket")
				}
				cmd.Args = append(args, cmd.Path)
				cmd.Path = activate
				cmd.Stderr = nil // it says what it does
			}, "listen-given")
			hang.Eventually(t, "the socket", func() bool {
				c, err := net.Dial(network, address) // for which the service is started
				if err != nil {
					return false
				}
				defer c.Close()
				require.Equal(t, "ready", p.Line(t))
				text, err := io.ReadAll(c)
				return err == nil && string(text) == want.plain
			})
			require.Equal(t, want.stream, told(t, *patient(), network, address), "%v", Explain(address))
		})
	}
}

func TestAListenerOfATestServesStreams(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "hello")
	}))
	ln, err := NewListener(server.Listener)
	require.NoError(t, err)
	server.Listener = ln
	server.Start()
	defer server.Close()
	var dialed net.Conn
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := patient().DialContext(ctx, network, address)
		dialed = c
		return c, err
	}}
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Get(server.URL)
	require.NoError(t, err)
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, "hello", string(body))
	require.IsType(t, (*Conn)(nil), dialed)
}

// What passes around a listener, streams would pass by.
func TestAListenerAroundAnotherIsRefused(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer tcp.Close()
	for _, around := range []net.Listener{
		tls.NewListener(tcp, &tls.Config{Certificates: []tls.Certificate{{}}}),
		struct{ net.Listener }{tcp},
	} {
		_, err = NewListener(around)
		require.ErrorContains(t, err, "does not show its socket")
		var op *net.OpError
		require.ErrorAs(t, err, &op)
	}
	inner := struct{ *net.TCPListener }{tcp.(*net.TCPListener)} // shows it
	ln, err := NewListener(inner)
	require.NoError(t, err)
	again, err := NewListener(ln)
	require.NoError(t, err)
	require.Same(t, ln, again)
	require.NoError(t, ln.Close())
	_, err = tcp.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
}

func TestAListenerThatIsClosedIsRefused(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, tcp.Close())
	ln, err := NewListener(tcp)
	if err == nil {
		ln.Close()
	}
	require.ErrorIs(t, err, net.ErrClosed)
}

func TestListenersOfOtherKindsAreReturnedAsTheyAre(t *testing.T) {
	piped := &pipedListener{}
	ln, err := NewListener(piped)
	require.NoError(t, err)
	require.Same(t, piped, ln)
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer tcp.Close()
	ln, err = (&ListenConfig{Transport: TCP}).NewListener(tcp)
	require.NoError(t, err)
	require.Same(t, tcp, ln)
	_, err = (&ListenConfig{Transport: "bogus"}).NewListener(tcp)
	require.Error(t, err)
	require.NoError(t, tcp.Close(), "a listener that could not be used was closed")
}

// pipedListener is of a network of its own.
type pipedListener struct{ net.Listener }

func (*pipedListener) Addr() net.Addr { return pipedAddr{} }

type pipedAddr struct{}

func (pipedAddr) Network() string { return "pipe" }
func (pipedAddr) String() string  { return "pipe" }

func TestAGivenListenerServesTheFamiliesThatItsSocketServes(t *testing.T) {
	for _, network := range []string{"tcp", "tcp6"} {
		tcp, err := net.Listen(network, "[::]:0")
		require.NoError(t, err)
		ln, err := NewListener(tcp)
		require.NoError(t, err)
		_, port, err := net.SplitHostPort(ln.Addr().String())
		require.NoError(t, err)
		for _, host := range []string{"127.0.0.1", "::1"} {
			c, err := (&Dialer{Transport: Soft}).Dial("tcp", net.JoinHostPort(host, port))
			if network == "tcp6" && host == "127.0.0.1" {
				require.Error(t, err)
				continue
			}
			require.NoError(t, err)
			require.NoError(t, c.Close())
		}
		require.NoError(t, ln.Close())
	}
}

func TestFileAndSyscallConnLeadToTheTCPSocket(t *testing.T) {
	ln := carrier{}.listen(t).(*Listener)
	file, err := ln.File()
	require.NoError(t, err)
	defer file.Close()
	raw, err := ln.SyscallConn()
	require.NoError(t, err)
	for _, c := range []syscall.RawConn{raw, rawOf(t, file)} {
		var at unix.Sockaddr
		var listens int
		require.NoError(t, c.Control(func(fd uintptr) {
			var nameErr, optionErr error
			at, nameErr = unix.Getsockname(int(fd))
			listens, optionErr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
			err = errors.Join(nameErr, optionErr)
		}))
		require.NoError(t, err)
		require.Equal(t, 1, listens)
		require.Equal(t, ln.Addr().(*net.TCPAddr).Port, at.(*unix.SockaddrInet4).Port)
	}
}

func rawOf(t *testing.T, c syscall.Conn) syscall.RawConn {
	t.Helper()
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	return raw
}

// os/exec asks for the descriptor of a file that it hands on. The listener still
// accepts streams.
func TestAListenerWhoseFileWasHandedOnAcceptsStreams(t *testing.T) {
	ln := carrier{}.listen(t).(*Listener)
	file, err := ln.File()
	require.NoError(t, err)
	defer file.Close()
	flags, err := unix.FcntlInt(file.Fd(), unix.F_GETFL, 0)
	require.NoError(t, err)
	require.NotZero(t, flags&unix.O_NONBLOCK)
	for range 3 {
		dialed, accepted := streamTo(t, ln)
		dialed.Close()
		accepted.Close()
	}
}

// The deadline that a listener had is no more, as it is not for Accept.
func TestAGivenListenerWithADeadlineResetsTCPAllTheSame(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, tcp.(*net.TCPListener).SetDeadline(time.Unix(1, 0)))
	ln, err := (&ListenConfig{Transport: Soft}).NewListener(tcp)
	require.NoError(t, err)
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err == nil { // otherwise it was reset before that
		defer c.Close()
		require.NoError(t, c.SetDeadline(time.Now().Add(hang.Time)))
		_, err = c.Read(make([]byte, 1))
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
}
