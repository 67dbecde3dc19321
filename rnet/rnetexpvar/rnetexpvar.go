// Package rnetexpvar publishes the statistics of rnet with package expvar,
// under the name "rnet". It is imported for that alone:
//
//	import _ "github.com/seed-b9b531af/ramjet/rnet/rnetexpvar"
//
// As expvar does, that adds /debug/vars to http.DefaultServeMux; who can reach
// it reads the addresses of all peers.
package rnetexpvar

import (
	"expvar"

	"github.com/seed-b9b531af/ramjet/rnet"
)

func init() {
	expvar.Publish("rnet", expvar.Func(func() any { return rnet.ReadStats() }))
}
