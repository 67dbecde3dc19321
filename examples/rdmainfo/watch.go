package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs"
)

// sample is the traffic of a port in one interval, per second.
type sample struct {
	Time        time.Time      `json:"time"` // of its end
	Device      string         `json:"device"`
	Port        uint8          `json:"port"`
	RxBytes     float64        `json:"rxBytesPerSecond"`
	TxBytes     float64        `json:"txBytesPerSecond"`
	BytesFrom   string         `json:"bytesFrom"`
	RxPackets   float64        `json:"rxPacketsPerSecond"`
	TxPackets   float64        `json:"txPacketsPerSecond"`
	PacketsFrom string         `json:"packetsFrom"`
	Counters    []namedCounter `json:"counters,omitempty"` // that moved, and by how much
}

type portKey struct {
	device string
	port   uint8
}

// watch prints the traffic of each port at each interval, rounds times or until
// ctx ends. Devices may come and go.
func watch(ctx context.Context, out io.Writer, every time.Duration, rounds int, asJSON bool) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	w := &printer{out: out}
	enc := json.NewEncoder(out)
	before := readPorts()
	for round := 0; rounds == 0 || round < rounds; round++ {
		select { // ends with the next interval, or an interrupt
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		now := readPorts()
		list := samples(before, now)
		before = now
		if asJSON {
			for _, s := range list {
				if err := enc.Encode(s); err != nil {
					return err
				}
			}
			continue
		}
		w.samples(list)
		if w.err != nil {
			return w.err
		}
	}
	return nil
}

// readPorts reads the counters of all ports of the kernel's devices.
func readPorts() map[portKey]rdmahost.PortCounters {
	ports := make(map[portKey]rdmahost.PortCounters)
	// A provider that cannot list its devices has none to show this time.
	list, _ := verbs.Devices()
	for _, d := range list {
		if d.Provider != uverbs.ProviderName {
			continue
		}
		for port := uint8(1); port < 255; port++ {
			c, err := rdmahost.ReadCounters(d.Name, port)
			if err != nil {
				break // there are no more ports, or the device has gone
			}
			ports[portKey{d.Name, port}] = c
		}
	}
	return ports
}

// samples compares two readings. Ports that are not in both are left out.
func samples(before, now map[portKey]rdmahost.PortCounters) []sample {
	var list []sample
	for key, b := range now {
		a, ok := before[key]
		took := b.Time.Sub(a.Time).Seconds()
		if !ok || took <= 0 {
			continue
		}
		rate := func(from, to uint64) float64 { return float64(grown(from, to)) / took }
		list = append(list, sample{
			Time: b.Time, Device: key.device, Port: key.port,
			RxBytes: rate(a.Traffic.RxBytes, b.Traffic.RxBytes), TxBytes: rate(a.Traffic.TxBytes, b.Traffic.TxBytes), BytesFrom: b.Traffic.BytesFrom,
			RxPackets: rate(a.Traffic.RxPackets, b.Traffic.RxPackets), TxPackets: rate(a.Traffic.TxPackets, b.Traffic.TxPackets), PacketsFrom: b.Traffic.PacketsFrom,
			Counters: append(moved(a.Standard, b.Standard), moved(a.Driver, b.Driver)...),
		})
	}
	slices.SortFunc(list, func(a, b sample) int {
		if c := strings.Compare(a.Device, b.Device); c != 0 {
			return c
		}
		return int(a.Port) - int(b.Port)
	})
	return list
}

// grown is how much a counter has grown. One that went back began anew, with a
// device that was removed and added.
func grown(from, to uint64) uint64 {
	if to < from {
		return to
	}
	return to - from
}

func moved(before, now []rdmahost.Counter) (list []namedCounter) {
	was := make(map[string]uint64)
	for _, c := range before {
		was[c.Name] = c.Value
	}
	for _, c := range now {
		if n := grown(was[c.Name], c.Value); n > 0 {
			list = append(list, namedCounter{c.Name, n})
		}
	}
	return list
}

// samples prints one interval.
func (w *printer) samples(list []sample) {
	if len(list) == 0 {
		w.line("%s no RDMA port", time.Now().Format(time.TimeOnly))
		return
	}
	for _, s := range list {
		var counters []string
		for _, c := range s.Counters {
			counters = append(counters, fmt.Sprintf("%s +%d", c.Name, c.Value))
		}
		from := s.BytesFrom
		if from == "" {
			from = "nobody"
		}
		w.line("%s %s/%d: received %s/s %.0f packets/s, sent %s/s %.0f packets/s (bytes counted by %s)%s",
			s.Time.Format(time.TimeOnly), s.Device, s.Port,
			amount(uint64(s.RxBytes)), s.RxPackets, amount(uint64(s.TxBytes)), s.TxPackets,
			from, prefixed("; ", strings.Join(counters, ", ")))
	}
}
