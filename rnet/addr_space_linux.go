package rnet

import (
	"fmt"
	"os"
	"sync"
)

// tcpPortRange returns the first and the last port that the kernel gives to TCP
// connections that ask for none.
var tcpPortRange = sync.OnceValues(func() (low, high int) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		_, err = fmt.Sscan(string(text), &low, &high)
	}
	if err != nil || low < firstPort || high < low || high > 1<<16-1 {
		return 32768, 60999 // what it is if nobody has changed it
	}
	return low, high
})
