package kernelcm

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/stretchr/testify/require"
)

// Datagrams with udaddy of librdmacm's examples. Its client looks up a QP and sends it some
// messages, each with its QP number as immediate data, for which its server sends as many back.
// Both look at how many came, not at what is in them.

const (
	udaddyPort     = 7174 // which it does not let choose
	udaddyMessages = 10
)

// udaddy starts the C program for one QP, with messages of 100 bytes.
func udaddy(t *testing.T, args ...string) *program {
	t.Helper()
	return startProgram(t, "udaddy", args...)
}

// overDatagrams is overDevices for those that have UD QPs.
func overDatagrams(t *testing.T, test func(t *testing.T, f *cmtest.Fabric)) {
	if !cmtest.HaveDevices() {
		overDevices(t, nil) // which says so
		return
	}
	cmtest.OverDatagrams(t, cmtest.FabricsOn(t, on), test)
}

func TestAUdaddyClientIsServed(t *testing.T) {
	overDatagrams(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := netip.AddrPortFrom(f.Host, udaddyPort)
		d := f.NewDatagrams(t)
		l := f.MustListenDatagram(t, addr, rcm.ListenConfig{})
		client := udaddy(t, "-s", addr.Addr().String())

		r, err := l.Accept(cmtest.Within(t))
		require.NoError(t, err)
		require.Equal(t, addr, r.LocalAddr())
		require.NoError(t, r.Accept(d.QP, d.Param("")))
		var last cmtest.Message
		for range udaddyMessages {
			last = d.Next()
			require.Len(t, last.Text, 100)
		}
		for range udaddyMessages {
			require.NoError(t, d.Answer(last, strings.Repeat("x", 100)))
		}
		require.NoError(t, client.wait())
		require.Contains(t, client.said(), "data transfers complete")
		require.Contains(t, client.said(), "return status 0")
	})
}

func TestAUdaddyServerServes(t *testing.T) {
	overDatagrams(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := netip.AddrPortFrom(f.Host, udaddyPort)
		server := udaddy(t, "-b", addr.Addr().String())
		d, to := lookUpUntilServed(f, t, addr)
		for range udaddyMessages {
			d.SendTo(to, strings.Repeat("x", 100))
		}
		for range udaddyMessages {
			m := d.Next()
			require.Len(t, m.Text, 100)
			require.Equal(t, to.QPN, m.Imm)
		}
		require.NoError(t, server.wait())
		require.Contains(t, server.said(), "data transfers complete")
	})
}

// lookUpUntilServed asks a program that has just been started.
func lookUpUntilServed(f *cmtest.Fabric, t *testing.T, addr netip.AddrPort) (*cmtest.Datagrams, rcm.Destination) {
	t.Helper()
	deadline := time.Now().Add(cmtest.Timeout)
	for {
		d := f.NewDatagrams(t) // one that has failed is of no use
		to, err := f.MustResolveDatagram(t, addr).Lookup(cmtest.Within(t), d.QP, d.Param(""))
		if err == nil {
			return d, to
		}
		require.ErrorIs(t, err, rcm.ErrNoListener)
		require.True(t, time.Now().Before(deadline), "nobody listens after a minute")
		time.Sleep(20 * time.Millisecond)
	}
}
