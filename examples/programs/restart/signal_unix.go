//go:build unix

package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/cloudflare/tableflip"
)

// upgradeOnSignal replaces the process at each SIGHUP, until the function that it returns is
// called.
func upgradeOnSignal(upgrader *tableflip.Upgrader) (stop func()) {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGHUP)
	over := make(chan struct{})
	go func() {
		for {
			select {
			case <-asked:
				if err := upgrader.Upgrade(); err != nil {
					fmt.Fprintln(os.Stderr, "restart:", err)
				}
			case <-over:
				return
			}
		}
	}()
	return func() {
		signal.Stop(asked)
		close(over)
	}
}
