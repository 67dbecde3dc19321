package rnet_test

import (
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/seed-b9b531af/ramjet/rnet"
)

// A server and a client that would say net.Listen and net.Dial otherwise.
func Example() {
	ln, err := rnet.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ln.Close()
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		io.Copy(conn, conn)
	}()

	conn, err := rnet.Dial("tcp", ln.Addr().String())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	fmt.Fprint(conn, "hello")
	buf := make([]byte, 5)
	io.ReadFull(conn, buf)
	fmt.Printf("%s\n", buf)
	// Output: hello
}

// An HTTP server and client over rnet.
func ExampleListen() {
	ln, err := rnet.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "served")
	})}
	go srv.Serve(ln)
	defer srv.Close()

	client := &http.Client{Transport: &http.Transport{DialContext: (&rnet.Dialer{}).DialContext}}
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://" + ln.Addr().String())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	fmt.Printf("%s\n", body)
	// Output: served
}

// Peek and Discard read what arrived from where it lies; Reserve and Commit
// send what is written in place.
func ExampleConn_Peek() {
	ln, err := rnet.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ln.Close()
	client, err := rnet.Dial("tcp", ln.Addr().String())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	server, err := ln.Accept()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	out, ok := client.(*rnet.Conn)
	in, ok2 := server.(*rnet.Conn)
	if !ok || !ok2 { // plain TCP: this system has nothing faster
		fmt.Println("in place")
		return
	}

	p, err := out.Reserve(64)
	if err != nil {
		fmt.Println(err)
		return
	}
	n := copy(p, "in place")
	if err := out.Commit(n); err != nil {
		fmt.Println(err)
		return
	}
	got, err := in.Peek(n)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", got)
	in.Discard(n)
	// Output: in place
}

// Explain tells what dials to an address came to.
func ExampleExplain() {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // a server that has never heard of rnet
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ln.Close()
	conn, err := rnet.Dial("tcp", ln.Addr().String())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	told := rnet.Explain(ln.Addr().String())
	fmt.Println(told[len(told)-1].Transport) // the newest is the last
	// Output: tcp
}
