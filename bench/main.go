package main

import "github.com/seed-b9b531af/ramjet/bench/harness"

func main() { harness.Main() }
