//go:build unix

package pools

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/seed-b9b531af/ramjet/rnet"
)

// overEach runs a test over TCP, where it shows what is to be, and over streams.
func overEach(t *testing.T, test func(t *testing.T, transport rnet.Transport)) {
	for _, transport := range []rnet.Transport{rnet.TCP, rnet.Soft} {
		t.Run(string(transport), func(t *testing.T) { test(t, transport) })
	}
}

// What must not be sent twice, net/http does not send twice: so it has to notice before.
func TestNetHTTPNoticesAClosedConnection(t *testing.T) {
	overEach(t, func(t *testing.T, transport rnet.Transport) {
		dialer := rnet.Dialer{Transport: transport}
		lc := rnet.ListenConfig{Transport: transport}
		ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		idle := make(chan struct{}, 3) // the server's end of a connection, after each answer
		hs := &http.Server{
			Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
			ConnState: func(_ net.Conn, state http.ConnState) {
				if state == http.StateIdle {
					idle <- struct{}{}
				}
			},
		}
		go hs.Serve(ln)
		defer hs.Close()
		noticed := make(chan struct{}, 1)
		pool := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, address)
			return told{c, noticed}, err
		}}
		defer pool.CloseIdleConnections()
		client := &http.Client{Transport: pool}
		post := func() (reused bool) {
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
				GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused },
			})
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+ln.Addr().String(), strings.NewReader("once"))
			require.NoError(t, err)
			answer, err := client.Do(request)
			require.NoError(t, err)
			io.Copy(io.Discard, answer.Body)
			answer.Body.Close()
			return reused
		}
		post()
		require.True(t, post())
		<-idle
		<-idle                         // an answer can be here before the server takes its connection for idle
		hs.SetKeepAlivesEnabled(false) // closes those that are idle
		hs.SetKeepAlivesEnabled(true)
		<-noticed
		require.False(t, post())
	})
}

// recorded is a listener that tells of what it accepts.
type recorded struct {
	net.Listener
	accepted chan net.Conn
}

func (l recorded) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.accepted <- c
	}
	return c, err
}

// A client leaves the state READY with its connection, without a call that would show it. Calls
// do not wait for one (WaitForReady), and none is sent twice.
func TestGRPCNoticesAClosedConnection(t *testing.T) {
	overEach(t, func(t *testing.T, transport rnet.Transport) {
		dialer := rnet.Dialer{Transport: transport}
		lc := rnet.ListenConfig{Transport: transport}
		ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		accepted := make(chan net.Conn, 1)
		var calls atomic.Int32
		gs := grpc.NewServer(grpc.UnaryInterceptor(
			func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
				calls.Add(1)
				return handle(ctx, request)
			}))
		grpc_health_v1.RegisterHealthServer(gs, health.NewServer())
		go gs.Serve(recorded{ln, accepted})
		defer gs.Stop()
		client, err := grpc.NewClient("passthrough:///"+ln.Addr().String(),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				return dialer.DialContext(ctx, "tcp", address)
			}))
		require.NoError(t, err)
		defer client.Close()
		const rounds = 5
		for range rounds {
			_, err = grpc_health_v1.NewHealthClient(client).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
			require.NoError(t, err)
			// gRPC lets calls begin a moment before it says that it is ready (ccBalancerWrapper.UpdateState).
			for s := client.GetState(); s != connectivity.Ready; s = client.GetState() {
				require.True(t, client.WaitForStateChange(t.Context(), s))
			}
			(<-accepted).Close()
			require.True(t, client.WaitForStateChange(t.Context(), connectivity.Ready))
		}
		require.EqualValues(t, rounds, calls.Load())
	})
}

// told tells when its user closes it.
type told struct {
	net.Conn
	closed chan struct{}
}

func (c told) Close() error {
	select {
	case c.closed <- struct{}{}:
	default:
	}
	return c.Conn.Close()
}

func keepAlive(_, _ string, c syscall.RawConn) error {
	var err error
	return errors.Join(c.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1)
	}), err)
}

// gRPC's own dialer sets keep-alive on its socket by a control function.
func TestTheDialerOfGRPCGetsStreams(t *testing.T) {
	ln, err := rnet.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	gs := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(gs, health.NewServer())
	go gs.Serve(ln)
	defer gs.Stop()
	got := make(chan net.Conn, 1)
	// however busy the machine is
	dialer := rnet.Dialer{KeepAlive: -1, Control: keepAlive, HeadStart: time.Minute}
	client, err := grpc.NewClient("passthrough:///"+ln.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, "tcp", address)
			if err == nil {
				got <- c
			}
			return c, err
		}))
	require.NoError(t, err)
	defer client.Close()
	_, err = grpc_health_v1.NewHealthClient(client).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	require.IsType(t, (*rnet.Conn)(nil), <-got)
}
