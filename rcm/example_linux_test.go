package rcm_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"

	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rcm/kernelcm"
	"github.com/seed-b9b531af/ramjet/rcm/softcm"
	"github.com/seed-b9b531af/ramjet/verbs"
	_ "github.com/seed-b9b531af/ramjet/verbs/soft"
)

// newQP makes a QP on a device, with what it needs.
func newQP(device string) *verbs.QP {
	dev, err := verbs.Open(device)
	check(err)
	pd, err := dev.AllocPD()
	check(err)
	cq, err := dev.CreateCQ(verbs.CQAttr{CQE: 16}, nil)
	check(err)
	qp, err := pd.CreateQP(verbs.QPInitAttr{
		Type: verbs.QPTypeRC, SendCQ: cq, RecvCQ: cq,
		Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	check(err)
	return qp
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// Example connects two QPs of one host. The TCP listener chooses the port, and
// keeps it for those who come by TCP.
func Example() {
	ctx := context.Background()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	defer tcp.Close()
	addr := tcp.Addr().(*net.TCPAddr).AddrPort()

	ln, err := softcm.New(softcm.Config{}).Listen(addr, rcm.ListenConfig{})
	check(err)
	defer ln.Close()
	accepted := make(chan rcm.Conn)
	go func() {
		request, err := ln.Accept(ctx)
		check(err)
		qp := newQP(request.Device())
		conn, err := request.Accept(ctx, qp, rcm.ConnParam{PrivateData: []byte("welcome")})
		check(err)
		accepted <- conn
		<-conn.Disconnected() // ends with the dialer's Disconnect
		fmt.Println(errors.Is(conn.Err(), rcm.ErrDisconnected))
		check(conn.Disconnect())
		check(qp.PD().Context().Close())
		close(accepted)
	}()

	route, err := softcm.New(softcm.Config{}).Resolve(ctx, addr)
	check(err)
	qp := newQP(route.Device())
	conn, err := route.Connect(ctx, qp, rcm.ConnParam{PrivateData: []byte("hello")})
	check(err)
	peer := <-accepted // ends with the handshake
	fmt.Printf("%s, %s\n", peer.PrivateData(), conn.PrivateData())

	check(conn.Disconnect())
	check(qp.PD().Context().Close())
	<-accepted // ends when the other side has closed
	// Output:
	// hello, welcome
	// true
}

// A listener can refuse, and say why.
func ExampleRejectedError() {
	ctx := context.Background()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	defer tcp.Close()
	addr := tcp.Addr().(*net.TCPAddr).AddrPort()
	ln, err := softcm.New(softcm.Config{}).Listen(addr, rcm.ListenConfig{})
	check(err)
	defer ln.Close()
	go func() {
		request, err := ln.Accept(ctx)
		check(err)
		check(request.Reject([]byte("come back tomorrow")))
	}()

	route, err := softcm.New(softcm.Config{}).Resolve(ctx, addr)
	check(err)
	qp := newQP(route.Device())
	_, err = route.Connect(ctx, qp, rcm.ConnParam{})
	var rejected *rcm.RejectedError
	if errors.As(err, &rejected) {
		fmt.Println(rejected)
		fmt.Printf("%s\n", rejected.PrivateData)
	}
	check(qp.PD().Context().Close())
	// Output:
	// rejected by peer: refused by the program
	// come back tomorrow
}

// Whether a fabric reaches an address is found out by asking it, which costs
// little where it does not: no packet is sent.
func ExampleFabric() {
	elsewhere := netip.MustParseAddrPort("192.0.2.1:9000")
	for _, fabric := range []rcm.Fabric{softcm.New(softcm.Config{}), kernelcm.New(kernelcm.Config{Device: "nosuch0"})} {
		_, err := fabric.Resolve(context.Background(), elsewhere)
		fmt.Println(fabric.Name()+":", errors.Is(err, rcm.ErrNoRoute))
	}
	// Output:
	// soft: true
	// kernel: true
}
