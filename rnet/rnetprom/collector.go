// Package rnetprom gives the statistics of rnet to Prometheus:
//
//	prometheus.MustRegister(rnetprom.NewCollector())
//
// The series of a device have the labels transport and device, and those of
// dials transport and reason (docs/troubleshooting.md explains each). No label
// has an address, so that the number of series does not grow with the peers.
// Sums include the sessions that have ended. The share of waits that polling
// ended is
//
//	rate(rnet_poll_hits_total[5m]) /
//		(rate(rnet_poll_hits_total[5m]) + rate(rnet_poll_misses_total[5m]))
package rnetprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed-b9b531af/ramjet/rnet"
)

// NewCollector returns a collector of the statistics of this process. It reads
// them when it is asked, which takes the locks of each session for a moment.
// There should be one in a process. It may be used by any goroutine.
func NewCollector() prometheus.Collector { return collector{} }

type collector struct{}

// series is one metric of devices.
type series struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*rnet.DeviceStats) float64
}

var deviceLabels = []string{"transport", "device"}

func gauge(name, help string, value func(*rnet.DeviceStats) int) series {
	return series{prometheus.NewDesc("rnet_"+name, help, deviceLabels, nil), prometheus.GaugeValue,
		func(d *rnet.DeviceStats) float64 { return float64(value(d)) }}
}

func counter(name, help string, value func(*rnet.DeviceStats) uint64) series {
	return series{prometheus.NewDesc("rnet_"+name+"_total", help, deviceLabels, nil), prometheus.CounterValue,
		func(d *rnet.DeviceStats) float64 { return float64(value(d)) }}
}

var ofDevices = []series{
	gauge("sessions", "Sessions that live.", func(d *rnet.DeviceStats) int { return d.Sessions }),
	gauge("streams", "Streams (accelerated connections) that are open.", func(d *rnet.DeviceStats) int { return d.Streams }),
	counter("sessions_opened", "Sessions opened.", func(d *rnet.DeviceStats) uint64 { return d.SessionsOpened }),
	counter("streams_opened", "Streams opened, by either side.", func(d *rnet.DeviceStats) uint64 { return d.StreamsOpened }),
	counter("received_bytes", "Payload received.", func(d *rnet.DeviceStats) uint64 { return d.BytesIn }),
	counter("sent_bytes", "Payload sent.", func(d *rnet.DeviceStats) uint64 { return d.BytesOut }),
	counter("received_messages", "Frames received, of payload or not.", func(d *rnet.DeviceStats) uint64 { return d.FramesIn }),
	counter("sent_messages", "Frames of payload sent.", func(d *rnet.DeviceStats) uint64 { return d.FramesOut }),
	counter("poll_hits", "Waits that polling ended.", func(d *rnet.DeviceStats) uint64 { return d.PollHits }),
	counter("poll_misses", "Waits that had to sleep after polling.", func(d *rnet.DeviceStats) uint64 { return d.PollMisses }),
	counter("thread_waits", "Sleeps of a thread on a completion channel.", func(d *rnet.DeviceStats) uint64 { return d.ThreadWaits }),
	counter("parks", "Sleeps of a goroutine.", func(d *rnet.DeviceStats) uint64 { return d.Parks }),
	counter("wakeups", "Wake-ups of sessions' engines.", func(d *rnet.DeviceStats) uint64 { return d.Wakeups }),
	counter("credit_stalls", "Sends that had to wait for the peer's ring or receives.", func(d *rnet.DeviceStats) uint64 { return d.CreditStalls }),
	counter("credit_messages", "Credit messages sent.", func(d *rnet.DeviceStats) uint64 { return d.CreditsSent }),
	counter("window_updates", "Window updates of streams sent.", func(d *rnet.DeviceStats) uint64 { return d.WindowsSent }),
	counter("spills", "Pieces moved out of the receive ring for a slow reader.", func(d *rnet.DeviceStats) uint64 { return d.Spills }),
}

var (
	rnrs = counter("rnr", "Requests that found no receive at the peer; kernel devices count for all processes.",
		func(d *rnet.DeviceStats) uint64 { return d.RNRs })
	dials = prometheus.NewDesc("rnet_dials_total", "Dials, by the transport taken and the reason why nothing faster.",
		[]string{"transport", "reason"}, nil)
	listeners   = prometheus.NewDesc("rnet_listeners", "Listeners that are open.", nil, nil)
	pinnedBytes = prometheus.NewDesc("rnet_pinned_bytes", "Registered memory.", nil, nil)
	pinLimit    = prometheus.NewDesc("rnet_pin_limit_bytes", "Cap on registered memory that the program has set, 0: none.", nil, nil)
)

// Describe sends what Collect may send.
func (collector) Describe(descs chan<- *prometheus.Desc) {
	for _, s := range ofDevices {
		descs <- s.desc
	}
	for _, d := range []*prometheus.Desc{rnrs.desc, dials, listeners, pinnedBytes, pinLimit} {
		descs <- d
	}
}

// Collect reads the statistics.
func (collector) Collect(metrics chan<- prometheus.Metric) {
	st := rnet.ReadStats()
	for i := range st.Devices {
		d := &st.Devices[i]
		for _, s := range ofDevices {
			s.send(metrics, d)
		}
		if d.RNRsCounted {
			rnrs.send(metrics, d)
		}
	}
	for _, d := range st.Dials {
		metrics <- prometheus.MustNewConstMetric(dials, prometheus.CounterValue, float64(d.Dials), string(d.Transport), d.Reason)
	}
	metrics <- prometheus.MustNewConstMetric(listeners, prometheus.GaugeValue, float64(len(st.Listeners)))
	metrics <- prometheus.MustNewConstMetric(pinnedBytes, prometheus.GaugeValue, float64(st.PinnedBytes))
	metrics <- prometheus.MustNewConstMetric(pinLimit, prometheus.GaugeValue, float64(st.PinLimit))
}

func (s *series) send(metrics chan<- prometheus.Metric, d *rnet.DeviceStats) {
	metrics <- prometheus.MustNewConstMetric(s.desc, s.kind, s.value(d), string(d.Transport), d.Device)
}
