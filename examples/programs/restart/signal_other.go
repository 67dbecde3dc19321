//go:build !unix

package main

import "github.com/cloudflare/tableflip"

// upgradeOnSignal does nothing where there is no SIGHUP.
func upgradeOnSignal(*tableflip.Upgrader) (stop func()) { return func() {} }
