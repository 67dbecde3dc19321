package rnet

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
)

func TestWhatIsUsedCanBePrinted(t *testing.T) {
	for _, network := range []string{"tcp", "unix", unixPackets} {
		t.Run(network, func(t *testing.T) {
			address := "127.0.0.1:0"
			if isUnix(network) {
				address = filepath.Join(t.TempDir(), "s")
			}
			ln, err := (&ListenConfig{Transport: Soft}).Listen(t.Context(), network, address)
			require.NoError(t, err)
			defer ln.Close()
			dialer := &Dialer{Transport: Soft}
			c, err := dialer.Dial(network, ln.Addr().String())
			require.NoError(t, err)
			s, err := ln.Accept()
			require.NoError(t, err)
			reading := hang.Start(t, func() { io.Copy(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{s}) })
			writing := hang.Start(t, func() {
				for range 2000 {
					c.Write(make([]byte, 100))
				}
				c.Close()
			})
			accepting := hang.Start(t, func() {
				for range 20 {
					if peer, err := dialer.Dial(network, ln.Addr().String()); err == nil {
						peer.Close()
					}
				}
			})
			both := func(c net.Conn) string {
				return fmt.Sprintf("%s %v->%v", network, c.LocalAddr(), c.RemoteAddr())
			}
			for range 500 {
				for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d"} {
					require.Equal(t, both(s), fmt.Sprintf(verb, s))
					require.Equal(t, both(c), fmt.Sprintf(verb, c))
					require.Equal(t, fmt.Sprintf("%s %v", network, ln.Addr()), fmt.Sprintf(verb, ln))
				}
			}
			writing()
			accepting()
			require.NoError(t, s.Close())
			reading()
		})
	}
}
