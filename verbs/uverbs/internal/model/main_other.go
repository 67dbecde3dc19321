//go:build !linux || !(amd64 || arm64)

// Model runs programs on a model of RDMA devices in user space. See the README.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "model: it runs on Linux, on amd64 and arm64")
	os.Exit(1)
}
