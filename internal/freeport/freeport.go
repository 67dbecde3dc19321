// Package freeport finds addresses for servers that cannot listen on port 0, in tests,
// examples and benchmarks.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
)

// Kernels take ports above these for port 0 and for dials (Linux from 32768 on, others from
// 49152), so another process gets one of these only if it asks for it.
const first, count = 10_000, 32_768 - 10_000

var next atomic.Uint32

func init() { next.Store(rand.Uint32N(count)) }

// Address returns an address of the host at which nobody listens over TCP, another one each
// time.
func Address(host string) (string, error) {
	var err error
	for range 100 {
		port := first + next.Add(1)%count
		addr := net.JoinHostPort(host, strconv.Itoa(int(port)))
		var ln net.Listener
		if ln, err = net.Listen("tcp", addr); err == nil {
			return addr, ln.Close()
		}
	}
	return "", fmt.Errorf("find a free port of %s: %w", host, err)
}
