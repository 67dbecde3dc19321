// Bench is `bench verbs` over the C library:
//
//	RAMJET_PROVIDERS=ibverbs go run -C verbs/ibverbs ./bench -device mlx5_0
//
// Its arguments, and what it prints, are those of `go run ./bench verbs`. RAMJET_PROVIDERS decides
// for devices that the library and package uverbs both have.
package main

import (
	"os"

	"github.com/seed-b9b531af/ramjet/bench/verbsperf"
	_ "github.com/seed-b9b531af/ramjet/verbs/ibverbs"
)

func main() {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == verbsperf.Page { // it starts itself as the server
		args = args[1:]
	}
	verbsperf.Main(args)
}
