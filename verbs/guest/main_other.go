//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "guest: guests are made and run on Linux")
	os.Exit(1)
}
