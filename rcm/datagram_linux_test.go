package rcm_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// overDatagrams is overFabrics for UD QPs.
func overDatagrams(t *testing.T, test func(t *testing.T, f *cmtest.Fabric)) {
	var list []*cmtest.Fabric
	if cmtest.HaveDevices() {
		list = cmtest.FabricsOn(t, fabricOn)
	} else {
		list = append(list, softAt("127.0.0.1"), softAt("::1"))
	}
	cmtest.OverDatagrams(t, list, test)
}

// acceptNext accepts the next request of a listener with a QP, on a goroutine of its own.
func acceptNext(t *testing.T, l rcm.DatagramListener, qp *verbs.QP, p rcm.DatagramParam) <-chan rcm.DatagramRequest {
	done := make(chan rcm.DatagramRequest, 1)
	go func() {
		defer close(done)
		r, err := l.Accept(cmtest.Within(t))
		if err == nil {
			err = r.Accept(qp, p)
		}
		if err != nil {
			t.Errorf("answer: %v", err)
			return
		}
		done <- r
	}()
	return done
}

func TestLookupFindsAQPThatAnswers(t *testing.T) {
	overDatagrams(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		near, far := f.NewDatagrams(t), f.NewDatagrams(t)
		l := f.MustListenDatagram(t, addr, rcm.ListenConfig{})
		require.Equal(t, addr, l.Addr())
		answered := acceptNext(t, l, far.QP, far.Param("welcome"))

		route := f.MustResolveDatagram(t, addr)
		require.Equal(t, f.Device, route.Device())
		require.EqualValues(t, 1, route.Port())
		require.Equal(t, addr, route.RemoteAddr())
		to, err := route.Lookup(cmtest.Within(t), near.QP, near.Param("hello"))
		require.NoError(t, err)
		require.NoError(t, route.Close(), "it was used")
		r := cmtest.Await(t, answered)
		require.Equal(t, addr, r.LocalAddr())
		require.Equal(t, route.LocalAddr(), r.RemoteAddr().Addr())
		require.Equal(t, f.Device, r.Device())
		require.EqualValues(t, 1, r.Port())
		cmtest.Carried(f, t, r.PrivateData(), "hello")
		cmtest.Carried(f, t, to.PrivateData, "welcome")
		require.Equal(t, far.QP.Num(), to.QPN)
		require.EqualValues(t, rcm.DatagramQKey, to.QKey)
		require.NotZero(t, l.Stats().Requests)

		near.SendTo(to, "how are you?")
		m := far.Next()
		require.Equal(t, "how are you?", m.Text)
		require.Equal(t, near.QP.Num(), m.Imm)
		require.NoError(t, far.Answer(m, "fine"))
		require.Equal(t, "fine", near.Next().Text)
	})
}

func TestOneQPAnswersAll(t *testing.T) {
	overDatagrams(t, func(t *testing.T, f *cmtest.Fabric) {
		far := f.NewDatagrams(t)
		var listeners []rcm.DatagramListener
		for range 2 {
			listeners = append(listeners, f.MustListenDatagram(t, f.Addr(t), rcm.ListenConfig{}))
		}
		for _, text := range []string{"one", "two"} {
			near := f.NewDatagrams(t)
			for _, l := range listeners {
				answered := acceptNext(t, l, far.QP, far.Param(""))
				to, err := f.MustResolveDatagram(t, l.Addr()).Lookup(cmtest.Within(t), near.QP, near.Param(""))
				require.NoError(t, err)
				cmtest.Await(t, answered)
				require.Equal(t, far.QP.Num(), to.QPN)
				near.SendTo(to, text)
				m := far.Next()
				require.Equal(t, text, m.Text)
				require.Equal(t, near.QP.Num(), m.Imm)
			}
		}
	})
}

func TestARefusedLookupSaysWhy(t *testing.T) {
	overDatagrams(t, func(t *testing.T, f *cmtest.Fabric) {
		addr := f.Addr(t)
		lookup := func() error {
			near := f.NewDatagrams(t)
			route, err := f.ResolveDatagram(cmtest.Within(t), addr)
			if err != nil {
				return err
			}
			_, err = route.Lookup(cmtest.Within(t), near.QP, near.Param("may I?"))
			a, queryErr := near.QP.Query()
			require.NoError(t, queryErr)
			require.Equal(t, verbs.QPStateErr, a.State)
			return err
		}
		require.ErrorIs(t, lookup(), rcm.ErrNoListener)

		l := f.MustListenDatagram(t, addr, rcm.ListenConfig{Backlog: 1})
		refused := make(chan error, 1)
		go func() {
			r, err := l.Accept(cmtest.Within(t))
			if err == nil {
				err = r.Reject([]byte("no"))
			}
			refused <- err
		}()
		err := lookup()
		require.NoError(t, cmtest.Await(t, refused))
		var rejected *rcm.RejectedError
		require.ErrorAs(t, err, &rejected)
		require.Equal(t, rcm.ReasonConsumer, rejected.Reason)
		cmtest.Carried(f, t, rejected.PrivateData, "no")

		// One request waits, and the next one finds no room. Close
		// refuses that which waits.
		waiting := make(chan error, 1)
		near := f.NewDatagrams(t)
		go func() {
			route, err := f.ResolveDatagram(cmtest.Within(t), addr)
			if err == nil {
				_, err = route.Lookup(cmtest.Within(t), near.QP, near.Param(""))
			}
			waiting <- err
		}()
		require.Eventually(t, func() bool { return l.Stats().Requests == 2 }, cmtest.Timeout, time.Millisecond)
		require.ErrorIs(t, lookup(), rcm.ErrBusy)
		require.NoError(t, l.Close())
		require.ErrorIs(t, cmtest.Await(t, waiting), rcm.ErrNoListener)
		_, err = l.Accept(cmtest.Within(t))
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

func TestALookupEndsWithItsContext(t *testing.T) {
	overDatagrams(t, func(t *testing.T, f *cmtest.Fabric) {
		l := f.MustListenDatagram(t, f.Addr(t), rcm.ListenConfig{})
		near := f.NewDatagrams(t)
		ctx, cancel := context.WithCancel(cmtest.Within(t))
		ended := make(chan error, 1)
		route := f.MustResolveDatagram(t, l.Addr())
		go func() {
			_, err := route.Lookup(ctx, near.QP, near.Param(""))
			ended <- err
		}()
		r, err := l.Accept(cmtest.Within(t)) // and does not answer
		require.NoError(t, err)
		cancel()
		require.ErrorIs(t, cmtest.Await(t, ended), context.Canceled)
		require.NoError(t, r.Reject(nil))
		require.ErrorIs(t, r.Reject(nil), verbs.ErrInvalid, "it was answered")
		require.ErrorIs(t, r.Accept(near.QP, rcm.DatagramParam{}), verbs.ErrInvalid, "it was answered")
		_, err = route.Lookup(cmtest.Within(t), near.QP, rcm.DatagramParam{})
		require.ErrorIs(t, err, verbs.ErrInvalid, "it was used")
	})
}

func TestAQPForDatagramsHasToBeginOrToBeReady(t *testing.T) {
	overDatagrams(t, func(t *testing.T, f *cmtest.Fabric) {
		l := f.MustListenDatagram(t, f.Addr(t), rcm.ListenConfig{})
		with := func(qp *verbs.QP, p rcm.DatagramParam) error {
			_, err := f.MustResolveDatagram(t, l.Addr()).Lookup(cmtest.Within(t), qp, p)
			return err
		}
		require.ErrorIs(t, with(f.NewSide(t).QP(t), rcm.DatagramParam{}), verbs.ErrInvalid, "an RC QP")
		long := rcm.DatagramParam{PrivateData: make([]byte, rcm.MaxLookupData+1)}
		require.ErrorIs(t, with(f.NewDatagrams(t).QP, long), verbs.ErrInvalid)

		d := f.NewDatagrams(t)
		const begin = verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrQKey
		require.NoError(t, d.QP.Modify(verbs.QPAttr{State: verbs.QPStateInit, Port: 1, QKey: 0x1234}, begin))
		require.ErrorIs(t, with(d.QP, rcm.DatagramParam{}), verbs.ErrInvalid, "a QP in INIT")
		require.NoError(t, d.QP.Modify(verbs.QPAttr{State: verbs.QPStateRTR}, verbs.QPAttrState))
		require.NoError(t, d.QP.Modify(verbs.QPAttr{State: verbs.QPStateRTS}, verbs.QPAttrState|verbs.QPAttrSQPSN))
		require.ErrorIs(t, with(d.QP, rcm.DatagramParam{}), verbs.ErrInvalid, "a QP with another Q_Key")
		a, err := d.QP.Query()
		require.NoError(t, err)
		require.Equal(t, verbs.QPStateRTS, a.State, "it is not ours to stop")

		broken := rcm.DatagramParam{Prepare: func(*verbs.QP) error { return net.ErrClosed }}
		d = f.NewDatagrams(t)
		require.ErrorIs(t, with(d.QP, broken), net.ErrClosed)
		a, err = d.QP.Query()
		require.NoError(t, err)
		require.Equal(t, verbs.QPStateErr, a.State)
		require.Zero(t, l.Stats().Requests, "nobody has asked")
	})
}

func TestPrivateDataOfDatagramsMayBeAsLongAsItSays(t *testing.T) {
	overDatagrams(t, func(t *testing.T, f *cmtest.Fabric) {
		l := f.MustListenDatagram(t, f.Addr(t), rcm.ListenConfig{})
		near, far := f.NewDatagrams(t), f.NewDatagrams(t)
		question, reply := strings.Repeat("q", rcm.MaxLookupData), strings.Repeat("r", rcm.MaxLookupReplyData)
		answered := acceptNext(t, l, far.QP, far.Param(reply))
		to, err := f.MustResolveDatagram(t, l.Addr()).Lookup(cmtest.Within(t), near.QP, near.Param(question))
		require.NoError(t, err)
		require.Equal(t, reply, string(to.PrivateData))
		require.Equal(t, question, string(cmtest.Await(t, answered).PrivateData()))

		over := make(chan error, 2)
		go func() {
			r, err := l.Accept(cmtest.Within(t))
			if err != nil {
				over <- err
				return
			}
			over <- r.Reject(make([]byte, rcm.MaxLookupReplyData+1))
			over <- r.Reject(make([]byte, rcm.MaxLookupReplyData))
		}()
		_, err = f.MustResolveDatagram(t, l.Addr()).Lookup(cmtest.Within(t), near.QP, rcm.DatagramParam{})
		require.ErrorIs(t, cmtest.Await(t, over), verbs.ErrInvalid)
		require.NoError(t, cmtest.Await(t, over))
		var rejected *rcm.RejectedError
		require.ErrorAs(t, err, &rejected)
		require.Len(t, rejected.PrivateData, rcm.MaxLookupReplyData)
		a, err := near.QP.Query()
		require.NoError(t, err)
		require.Equal(t, verbs.QPStateRTS, a.State, "it had begun before")
	})
}

func TestWhatIsSentToAGroupComesToItsMembers(t *testing.T) {
	overDatagrams(t, func(t *testing.T, f *cmtest.Fabric) {
		a, b, sender := f.NewDatagrams(t), f.NewDatagrams(t), f.NewDatagrams(t)
		first := f.MustJoin(a, a.Group())
		f.MustJoin(b, b.Group())
		group := f.MustJoin(sender, rcm.JoinParam{SendOnly: true, Prepare: sender.Receive}).Destination()
		require.EqualValues(t, 0xffffff, group.QPN)
		require.Equal(t, first.Destination(), group)

		sender.SendTo(group, "to all")
		require.Equal(t, "to all", a.Next().Text)
		require.Equal(t, "to all", b.Next().Text)

		require.NoError(t, first.Err())
		require.NoError(t, first.Leave())
		cmtest.Await(t, first.Ended())
		require.ErrorIs(t, first.Err(), net.ErrClosed)
		require.NoError(t, first.Leave(), "it does nothing")

		// What comes to a after it has left is its own: b has what was sent
		// to the group before.
		sender.SendTo(group, "to those who stay")
		require.Equal(t, "to those who stay", b.Next().Text)
		l := f.MustListenDatagram(t, f.Addr(t), rcm.ListenConfig{})
		answered := acceptNext(t, l, a.QP, rcm.DatagramParam{})
		to, err := f.MustResolveDatagram(t, l.Addr()).Lookup(cmtest.Within(t), sender.QP, rcm.DatagramParam{})
		require.NoError(t, err)
		cmtest.Await(t, answered)
		sender.SendTo(to, "to you")
		require.Equal(t, "to you", a.Next().Text)
	})
}

func TestAQPMayGoBeforeItsMembership(t *testing.T) {
	overDatagrams(t, func(t *testing.T, f *cmtest.Fabric) {
		d := f.NewDatagrams(t)
		m := f.MustJoin(d, d.Group())
		require.NoError(t, d.QP.Fail())
		require.NoError(t, m.Leave())
	})
}

func TestOnlyGroupsAreJoined(t *testing.T) {
	overDatagrams(t, func(t *testing.T, f *cmtest.Fabric) {
		for _, addr := range []netip.Addr{f.Host, {}} {
			_, err := f.ResolveGroup(cmtest.Within(t), addr)
			require.ErrorIs(t, err, verbs.ErrInvalid)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := f.ResolveGroup(ctx, f.GroupAddr(t))
		require.ErrorIs(t, err, context.Canceled)

		r, err := f.ResolveGroup(cmtest.Within(t), f.GroupAddr(t))
		require.NoError(t, err)
		require.Equal(t, f.Device, r.Device())
		require.Equal(t, f.GroupAddr(t), r.Group())
		require.EqualValues(t, 1, r.Port())
		_, err = r.Join(cmtest.Within(t), f.NewSide(t).QP(t), rcm.JoinParam{})
		require.ErrorIs(t, err, verbs.ErrInvalid, "an RC QP")
		r, err = f.ResolveGroup(cmtest.Within(t), f.GroupAddr(t))
		require.NoError(t, err)
		require.NoError(t, r.Close())
		_, err = r.Join(cmtest.Within(t), f.NewDatagrams(t).QP, rcm.JoinParam{})
		require.ErrorIs(t, err, verbs.ErrInvalid, "it was closed")
	})
}

// answerLookups answers lookups at an address, and is in a group, with one UD QP. What comes to
// it is sent back.
func answerLookups(args []string) error {
	f := fabricOn(args[0])
	d, err := cmtest.OpenDatagrams(args[0])
	if err != nil {
		return err
	}
	l, err := f.ListenDatagram(netip.MustParseAddrPort(args[1]), rcm.ListenConfig{})
	if err != nil {
		return err
	}
	r, err := f.ResolveGroup(context.Background(), netip.MustParseAddr(args[2]))
	if err != nil {
		return err
	}
	if _, err := r.Join(context.Background(), d.QP, rcm.JoinParam{Prepare: d.Receive}); err != nil {
		return err
	}
	go func() {
		for {
			r, err := l.Accept(context.Background())
			if err == nil {
				err = r.Accept(d.QP, rcm.DatagramParam{})
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, "answer:", err)
				return
			}
		}
	}()
	go func() {
		for {
			m, err := d.AwaitMessage()
			if err == nil {
				err = d.Answer(m, m.Text)
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, "send back:", err)
				return
			}
		}
	}()
	cmtest.UntilStdinEnds() // and with it the process
	return nil
}

func init() { cmtest.Roles["answerLookups"] = answerLookups }

func TestDatagramsGoToAnotherProcess(t *testing.T) {
	overDatagrams(t, func(t *testing.T, f *cmtest.Fabric) {
		near := f.NewDatagrams(t)
		group := f.MustJoin(near, rcm.JoinParam{SendOnly: true, Prepare: near.Receive}).Destination()
		addr := f.Addr(t)
		cmtest.StartChild(t, 0, "answerLookups", f.Device, addr.String(), f.GroupAddr(t).String())
		to, err := f.MustResolveDatagram(t, addr).Lookup(cmtest.Within(t), near.QP, rcm.DatagramParam{})
		require.NoError(t, err)
		near.SendTo(to, "to you")
		require.Equal(t, "to you", near.Next().Text)

		// On the software HCA it takes a moment until a member in another process is known.
		for deadline := time.Now().Add(cmtest.Timeout); ; time.Sleep(10 * time.Millisecond) {
			near.SendTo(group, "to all")
			if m, ok := near.Arrived(); ok {
				require.Equal(t, "to all", m.Text)
				break
			}
			require.True(t, time.Now().Before(deadline), "the group does not answer")
		}
	})
}
