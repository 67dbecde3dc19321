package rnetprom_test

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/rnetprom"
)

// A program that serves prometheus.DefaultGatherer registers the collector with
// prometheus.MustRegister.
func ExampleNewCollector() {
	registry := prometheus.NewRegistry()
	registry.MustRegister(rnetprom.NewCollector())
	ln, err := rnet.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer ln.Close()

	families, err := registry.Gather()
	if err != nil {
		panic(err)
	}
	for _, family := range families {
		if family.GetName() == "rnet_listeners" {
			fmt.Println(family.GetName(), family.GetMetric()[0].GetGauge().GetValue())
		}
	}
	// Output: rnet_listeners 1
}
