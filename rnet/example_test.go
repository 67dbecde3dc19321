package rnet_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"

	"github.com/seed-b9b531af/ramjet/rnet"
)

// check ends an example that cannot go on.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// A server and a client that would say net.Listen and net.Dial otherwise.
func Example() {
	ln, err := rnet.Listen("tcp", "127.0.0.1:0")
	check(err)
	defer ln.Close()
	go func() {
		conn, err := ln.Accept()
		check(err)
		io.Copy(conn, conn)
		conn.Close()
	}()

	conn, err := rnet.Dial("tcp", ln.Addr().String())
	check(err)
	defer conn.Close()
	fmt.Fprint(conn, "hello")
	echo := make([]byte, 5)
	io.ReadFull(conn, echo)
	fmt.Printf("%s\n", echo)
	// Output: hello
}

// A server that has never heard of rnet is dialed too: over TCP.
func ExampleDial() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	defer ln.Close()

	conn, err := rnet.Dial("tcp", ln.Addr().String())
	check(err)
	defer conn.Close()
	fmt.Printf("%T\n", conn) // a *rnet.Conn if it is accelerated
	// Output: *net.TCPConn
}

// One listener serves those who dial with package net and those who dial with
// package rnet.
func ExampleListen() {
	ln, err := rnet.Listen("tcp", "127.0.0.1:0")
	check(err)
	defer ln.Close()
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return // the listener was closed
			}
			fmt.Fprint(conn, "served")
			conn.Close()
		}
	}()

	for _, dial := range []func(network, address string) (net.Conn, error){net.Dial, rnet.Dial} {
		conn, err := dial("tcp", ln.Addr().String())
		check(err)
		answer, err := io.ReadAll(conn)
		check(err)
		fmt.Printf("%s\n", answer)
		conn.Close()
	}
	// Output:
	// served
	// served
}

// DialContext and the listener have the form that other packages ask for, here
// net/http.
func ExampleDialer_DialContext() {
	ln, err := rnet.Listen("tcp", "127.0.0.1:0")
	check(err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "served over HTTP")
	})}
	go server.Serve(ln)
	defer server.Close()

	var d rnet.Dialer
	client := &http.Client{Transport: &http.Transport{DialContext: d.DialContext}}
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://" + ln.Addr().String())
	check(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	check(err)
	fmt.Printf("%s\n", body)
	// Output: served over HTTP
}

// A service that systemd starts when somebody connects gets its listening socket as
// descriptor 3, and its own process id to know that it was meant. Without them it
// listens by itself.
func ExampleNewListener() {
	ln, err := given()
	check(err)
	defer ln.Close()
	fmt.Println(ln.Addr().Network())
	// Output: tcp
}

func given() (net.Listener, error) {
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return rnet.Listen("tcp", "127.0.0.1:0")
	}
	file := os.NewFile(3, "LISTEN_FD_3")
	defer file.Close() // net.FileListener has a copy
	tcp, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	return rnet.NewListener(tcp)
}
