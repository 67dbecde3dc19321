package rnet

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// What is said of packets holds for streams too, or there are none.
func TestAListenerWithOptionsOfPacketsServesTCPAlone(t *testing.T) {
	for name, c := range map[string]struct {
		control func(string, string, syscall.RawConn) error
		streams bool
	}{
		"nothing":       {func(string, string, syscall.RawConn) error { return nil }, true},
		"reuse port":    {setting(unix.SO_REUSEPORT, 1), true},
		"keep-alive":    {setting(unix.SO_KEEPALIVE, 1), true},
		"a device":      {doing(func(fd int) error { return unix.BindToDevice(fd, "lo") }), false},
		"the least TTL": {settingAt(unix.IPPROTO_IP, unix.IP_MINTTL, 1), false},
		"a filter": {doing(func(fd int) error {
			all := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16}}
			return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &all[0]})
		}), false},
	} {
		t.Run(name, func(t *testing.T) {
			named := namedPort(t, "tcp", "127.0.0.1")
			given := func() (net.Listener, error) {
				config := net.ListenConfig{Control: c.control}
				tcp, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
				require.NoError(t, err)
				return NewListener(tcp)
			}
			lc := ListenConfig{Control: c.control}
			for _, listen := range []func() (net.Listener, error){
				given,
				func() (net.Listener, error) { return lc.Listen(t.Context(), "tcp", named) },
				func() (net.Listener, error) { return lc.Listen(t.Context(), "tcp", "127.0.0.1:0") },
			} {
				ln, err := listen()
				require.NoError(t, err)
				defer ln.Close()
				negatives.Forget(ln.Addr().String())
				dialed, err := Dial("tcp", ln.Addr().String())
				require.NoError(t, err)
				defer dialed.Close()
				accepted, err := ln.Accept()
				require.NoError(t, err)
				defer accepted.Close()
				for _, end := range []net.Conn{dialed, accepted} {
					_, isStream := end.(*Conn)
					require.Equal(t, c.streams, isStream, "%T", end)
				}
			}
		})
	}
	lc := ListenConfig{Control: settingAt(unix.IPPROTO_IP, unix.IP_MINTTL, 1), Transport: Soft}
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	require.IsType(t, (*Listener)(nil), ln, "where streams are demanded")
}
