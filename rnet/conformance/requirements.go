//go:build conformance

package main

// What the suites need, for go mod tidy.
import (
	_ "github.com/gorilla/websocket"
	_ "github.com/valyala/fasthttp"
	_ "github.com/xtaci/smux"
	_ "golang.org/x/crypto/ssh"
	_ "golang.org/x/net/http2"
	_ "google.golang.org/grpc"
)
