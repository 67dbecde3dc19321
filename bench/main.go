package main

import "github.com/seed-b9b531af/ramjet/internal/bench"

func main() { bench.Main() }
