package softcm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
	"github.com/seed-b9b531af/ramjet/rcm/internal/handshake"
	_ "github.com/seed-b9b531af/ramjet/verbs/soft"
	"golang.org/x/sys/unix"
)

func init() {
	cmtest.Roles["squat"], cmtest.Roles["hoard"], cmtest.Roles["knock"] = squat, hoard, knock
	cmtest.Roles["toil"], cmtest.Roles["await"], cmtest.Roles["foreign"] = toil, await, foreign
}

// onSoft is the fabric of the tests.
func onSoft() *cmtest.Fabric {
	return &cmtest.Fabric{Fabric: New(Config{}), Device: "soft0", Host: netip.MustParseAddr("127.0.0.1")}
}

// squat listens on an address over a device, for everybody, and accepts
// nobody.
func squat(args []string) error {
	everybody := func(rcm.Peer) bool { return true }
	f := New(Config{Device: args[0], PeerPolicy: everybody})
	l, err := f.Listen(netip.MustParseAddrPort(args[1]), rcm.ListenConfig{})
	if err != nil {
		return err
	}
	cmtest.UntilStdinEnds()
	return l.Close()
}

// await waits for the place of the listener at an address, and says when it has it.
func await(args []string) error {
	addr := netip.MustParseAddrPort(args[0])
	next, err := New(Config{}).(*fabric).Await(addr, rcm.ListenConfig{})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	l, err := next(context.Background()) // ends with the listener's hang-up
	if err != nil {
		return err
	}
	fmt.Println("listens")
	cmtest.UntilStdinEnds()
	return l.Close()
}

// toil is a squatter that is busy all the time.
func toil(args []string) error {
	go func() {
		for {
			runtime.Gosched()
		}
	}()
	return squat(args)
}

// hoard has the name of an address, and a queue that is full.
func hoard(args []string) error {
	name := &unix.SockaddrUnix{Name: nameOf(netip.MustParseAddrPort(args[0]))}
	fd, err := openSocket()
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Bind(fd, name), unix.Listen(fd, 0)); err != nil {
		return err
	}
	for err == nil { // ends with the queue full
		if fd, err = openSocket(); err == nil {
			err = unix.Connect(fd, name)
		}
	}
	if err != unix.EAGAIN {
		return err
	}
	cmtest.UntilStdinEnds()
	return nil
}

// knock dials an address, trusting whoever listens there, and says what came
// of it.
func knock(args []string) error {
	addr := netip.MustParseAddrPort(args[0])
	sock, err := dial([]string{nameOf(addr)}, func(rcm.Peer) bool { return true })
	if err != nil {
		return err
	}
	defer sock.Close()
	fmt.Println("ready")
	_, err = sock.expect(handshake.KindReply)
	if errors.Is(err, rcm.ErrPeerDenied) {
		fmt.Println("rejected")
		return nil
	}
	return err
}
