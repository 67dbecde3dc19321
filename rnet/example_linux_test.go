package rnet_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rnet"
)

// connect returns the two ends of a connection over the software HCA. A
// program that leaves the choice to rnet has to be ready for a *net.TCPConn.
func connect() (dialed, accepted *rnet.Conn) {
	lc := rnet.ListenConfig{Transport: rnet.Soft}
	ln, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	check(err)
	defer ln.Close()
	d := rnet.Dialer{Transport: rnet.Soft}
	here, err := d.Dial("tcp", ln.Addr().String())
	check(err)
	there, err := ln.Accept()
	check(err)
	return here.(*rnet.Conn), there.(*rnet.Conn)
}

// A dialer that demands a transport fails where it cannot be had. The error
// has the reason.
func ExampleDialer() {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // serves TCP alone
	check(err)
	defer ln.Close()

	d := rnet.Dialer{
		Timeout:   10 * time.Second,
		Transport: rnet.Soft,      // shared memory or nothing
		Profile:   rnet.Efficient, // spend no CPU time on waiting
	}
	_, err = d.Dial("tcp", ln.Addr().String())
	fmt.Println(fallback.Classify(err))
	// Output: no-listener
}

// Peers decides which processes of this user may come over shared memory.
func ExampleListenConfig() {
	lc := rnet.ListenConfig{
		Transport: rnet.Soft,
		Peers:     func(p rnet.PeerProcess) bool { return p.PID == os.Getpid() }, // nobody but us
	}
	ln, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	check(err)
	defer ln.Close()

	d := rnet.Dialer{Transport: rnet.Soft}
	conn, err := d.Dial("tcp", ln.Addr().String())
	check(err)
	defer conn.Close()
	fmt.Println("admitted")
	// Output: admitted
}

// A message begins with its length. Peek shows both without a buffer of the program's, and
// Discard gives the memory back.
func ExampleConn_Peek() {
	dialed, accepted := connect()
	defer dialed.Close()
	defer accepted.Close()
	_, err := dialed.Write([]byte("\x05hello\x05world"))
	check(err)

	for range 2 {
		head, err := accepted.Peek(1)
		check(err)
		end := 1 + int(head[0])
		message, err := accepted.Peek(end) // may return more than that
		check(err)
		fmt.Printf("%s\n", message[1:end])
		_, err = accepted.Discard(end)
		check(err)
	}
	// Output:
	// hello
	// world
}

// What is written into the memory that Reserve returns Commit sends from
// there.
func ExampleConn_Reserve() {
	dialed, accepted := connect()
	defer dialed.Close()
	defer accepted.Close()

	memory, err := dialed.Reserve(1024)
	check(err)
	n := copy(memory, "written in place")
	check(dialed.Commit(n))

	got := make([]byte, n)
	_, err = io.ReadFull(accepted, got)
	check(err)
	fmt.Printf("%s\n", got)
	// Output: written in place
}

// CloseWrite ends one direction. The other one goes on.
func ExampleConn_CloseWrite() {
	client, server := connect()
	defer client.Close()
	go func() {
		request, err := io.ReadAll(server) // ends with the client's CloseWrite
		check(err)
		fmt.Fprintf(server, "%d bytes", len(request))
		server.Close()
	}()

	_, err := client.Write([]byte("a request"))
	check(err)
	check(client.CloseWrite())
	answer, err := io.ReadAll(client) // ends with the server's Close
	check(err)
	fmt.Printf("%s\n", answer)
	// Output: 9 bytes
}

// Stats tells of one connection, ReadStats of the process: here of the session
// that carries it.
func ExampleReadStats() {
	dialed, accepted := connect()
	defer dialed.Close()
	defer accepted.Close()
	_, err := dialed.Write([]byte("hello"))
	check(err)

	ours := dialed.Stats()
	fmt.Println(ours.Transport, ours.BytesOut, "bytes sent")
	for _, s := range rnet.ReadStats().Sessions {
		if s.Number == ours.Session {
			fmt.Println(s.Device, s.Streams, "stream,", s.BytesOut, "bytes sent")
		}
	}
	// Output:
	// soft 5 bytes sent
	// soft0 1 stream, 5 bytes sent
}

// Explain tells which transport the last dials to an address took, and why
// nothing faster.
func ExampleExplain() {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // has never heard of rnet
	check(err)
	defer ln.Close()
	d := rnet.Dialer{HeadStart: time.Minute} // however busy the machine is
	conn, err := d.Dial("tcp", ln.Addr().String())
	check(err)
	defer conn.Close()

	decisions := rnet.Explain(ln.Addr().String())
	last := decisions[len(decisions)-1]
	fmt.Println(last.Transport, "because of", last.Reason)
	fmt.Println(last.Remedy)
	// Output:
	// tcp because of no-listener
	// Let the peer listen with rnet.Listen on that address, in the same network namespace or with a directory (RNET_DIR) in common.
}
