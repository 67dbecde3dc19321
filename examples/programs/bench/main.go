// Bench measures gRPC, go-redis and websockets over TCP, Unix sockets and
// ramjet beside each other, as `go run ./bench programs` measures what the
// standard library has.
//
//	go run -C examples/programs ./bench           in a minute
//	go run -C examples/programs ./bench -help     what can be chosen
//
// docs/performance.md says what the columns mean.
package main

import "github.com/seed-b9b531af/ramjet/bench/harness"

func main() { harness.Main(programs...) }

var programs = []harness.Program{grpcUnary, goRedis, gorillaWebsocket}
