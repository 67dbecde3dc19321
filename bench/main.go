package main

import (
	"os"

	"github.com/seed-b9b531af/ramjet/bench/harness"
	"github.com/seed-b9b531af/ramjet/bench/verbsperf"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == verbsperf.Page {
		verbsperf.Main(os.Args[2:])
	}
	harness.Main()
}
