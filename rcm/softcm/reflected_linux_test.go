package softcm

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"testing"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// A peer that names a QP of our own as its own would have two QPs of ours paired, or one with
// itself: what we send we would get back, by keys that the peer has chosen, and nobody's death
// would end it.

func init() { cmtest.Roles["reflect"] = reflected }

// reflected dials as the owner of a QP of another process, and ends when the connection is
// established, or refused.
func reflected(args []string) error {
	addr := netip.MustParseAddrPort(args[0])
	gid, err := hex.DecodeString(args[1])
	if err != nil {
		return err
	}
	num, err := strconv.ParseUint(args[2], 10, 32)
	if err != nil {
		return err
	}
	sock, err := dial([]string{nameOf(addr)}, nil)
	if err != nil {
		return err
	}
	defer sock.Close()
	err = sock.send(&handshake.Message{
		Kind: handshake.KindRequest, From: handshake.Endpoint{GID: verbs.GID(gid), QPN: uint32(num)},
		Src: cmtest.At("127.0.0.1", 40000), Dst: addr,
	})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := sock.expect(handshake.KindReply); err != nil {
		fmt.Println("refused")
		return nil
	}
	fmt.Println("replied")
	return sock.send(&handshake.Message{Kind: handshake.KindReady})
}

func TestADialerCannotBeAQPOfTheAcceptorsProcess(t *testing.T) {
	addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
	l := onSoft().MustListen(t, addr, rcm.ListenConfig{})
	qp := onSoft().NewSide(t).QP(t)
	own, err := localEndpoint(qp)
	require.NoError(t, err)
	child := cmtest.StartChild(t, 0, "reflect", addr.String(), hex.EncodeToString(own.GID[:]), strconv.Itoa(int(own.QPN)))
	r, err := l.Accept(cmtest.Within(t))
	require.NoError(t, err)
	_, err = r.Accept(cmtest.Within(t), qp, rcm.ConnParam{})
	require.ErrorIs(t, err, rcm.ErrMalformed)
	child.Expect(t, "refused")
}

func TestAnAcceptorCannotBeAnotherDialerOfTheProcess(t *testing.T) {
	for name, other := range map[string]int{"another": 1, "the same": 0} {
		t.Run(name, func(t *testing.T) {
			addr := cmtest.At("127.0.0.1", cmtest.FreePort(t))
			l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: nameOf(addr)})
			require.NoError(t, err)
			defer l.Close()
			conns := make(chan rcm.Conn, 2)
			var speakers []speaker
			var from []handshake.Endpoint
			for range 1 + other {
				qp := onSoft().NewSide(t).QP(t)
				r, err := New(Config{}).Resolve(cmtest.Within(t), addr)
				require.NoError(t, err)
				go func() {
					c, err := r.Connect(cmtest.Within(t), qp, rcm.ConnParam{})
					if err != nil {
						t.Error(err)
					}
					conns <- c
				}()
				c, err := l.AcceptUnix()
				require.NoError(t, err)
				s := speaker{c, t}
				speakers, from = append(speakers, s), append(from, s.read().From)
			}
			for i, s := range speakers {
				s.say((&handshake.Message{Kind: handshake.KindReply, From: from[(i+other)%len(from)]}).AppendTo(nil))
			}
			for _, s := range speakers {
				require.Equal(t, handshake.KindReady, s.read().Kind)
				s.Close()
			}
			for range speakers {
				c := cmtest.Await(t, conns)
				require.NotNil(t, c)
				cmtest.Await(t, c.Disconnected()) // ends with the sockets
				require.ErrorIs(t, c.Err(), syscall.ECONNRESET)
				require.NoError(t, c.Disconnect())
			}
		})
	}
}
