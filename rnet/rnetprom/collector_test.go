package rnetprom

import (
	"io"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet"
)

// exchange sends n bytes over a connection of transport, and back.
func exchange(t *testing.T, transport rnet.Transport, n int) (end func()) {
	t.Helper()
	ln, err := rnet.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	// however busy the machine is
	d := rnet.Dialer{Transport: transport, Dedicated: true, HeadStart: time.Minute}
	c, err := d.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	_, err = c.Write(make([]byte, n))
	require.NoError(t, err)
	_, err = io.ReadFull(c, make([]byte, n))
	require.NoError(t, err)
	return func() { require.NoError(t, c.Close()) }
}

// value returns the value of a series without labels, or the sum of one with.
func value(t *testing.T, r *prometheus.Registry, name string, labels ...string) (sum float64, found bool) {
	t.Helper()
	families, err := r.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	series:
		for _, m := range f.GetMetric() {
			have := make(map[string]string)
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			for i := 0; i < len(labels); i += 2 {
				if have[labels[i]] != labels[i+1] {
					continue series
				}
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			found = true
		}
	}
	return sum, found
}

func TestSeriesTellWhatWentThroughAndOutliveTheirSessions(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has sessions")
	}
	r := prometheus.NewPedanticRegistry()
	require.NoError(t, r.Register(NewCollector()))
	soft := []string{"transport", "soft", "device", "soft0"}
	at := func(name string) float64 {
		v, _ := value(t, r, name, soft...)
		return v
	}
	nobody := func() bool { return at("rnet_sessions") == 0 }
	// those of other tests go idle
	require.Eventually(t, nobody, 30*time.Second, 10*time.Millisecond)
	const n = 100_000
	sent, received, opened := at("rnet_sent_bytes_total"), at("rnet_received_bytes_total"), at("rnet_streams_opened_total")
	end := exchange(t, rnet.Soft, n)
	require.EqualValues(t, 2, at("rnet_sessions"), "both ends of one")
	require.EqualValues(t, 2, at("rnet_streams"))
	pinned, _ := value(t, r, "rnet_pinned_bytes")
	require.Positive(t, pinned)
	rnrs, counted := value(t, r, "rnet_rnr_total", soft...)
	require.True(t, counted)
	require.Zero(t, rnrs, "rnet never sends what the peer has no receive for")
	waited := func() bool { // or waits still: then polling is given up for sleep
		return at("rnet_poll_hits_total")+at("rnet_poll_misses_total")+at("rnet_parks_total") > 0
	}
	require.Eventually(t, waited, 30*time.Second, 10*time.Millisecond)

	end()
	require.Eventually(t, nobody, 30*time.Second, 10*time.Millisecond)
	require.EqualValues(t, 2*n, at("rnet_sent_bytes_total")-sent)
	require.EqualValues(t, 2*n, at("rnet_received_bytes_total")-received)
	require.EqualValues(t, 2, at("rnet_streams_opened_total")-opened)
	require.Zero(t, at("rnet_streams"))
}

func TestFallbacksAreCountedByReason(t *testing.T) {
	r := prometheus.NewRegistry()
	require.NoError(t, r.Register(NewCollector()))
	before, _ := value(t, r, "rnet_dials_total", "transport", "tcp", "reason", "forced")
	exchange(t, rnet.TCP, 10)()
	exchange(t, rnet.TCP, 10)()
	now, found := value(t, r, "rnet_dials_total", "transport", "tcp", "reason", "forced")
	require.True(t, found)
	require.EqualValues(t, 2, now-before)
}

func TestMetricsKeepTheConventionsOfPrometheus(t *testing.T) {
	exchange(t, rnet.Auto, 10)()
	problems, err := testutil.CollectAndLint(NewCollector())
	require.NoError(t, err)
	require.Empty(t, problems)
}

// Their names are promised in docs/versions.md.
func TestTheDocumentListsTheMetrics(t *testing.T) {
	text, err := os.ReadFile("../../docs/observability.md")
	require.NoError(t, err)
	descs := make(chan *prometheus.Desc)
	go func() {
		collector{}.Describe(descs)
		close(descs)
	}()
	var named, documented []string
	for d := range descs {
		named = append(named, regexp.MustCompile(`fqName: "([a-z_]+)"`).FindStringSubmatch(d.String())[1])
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `(rnet_[a-z_]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		documented = append(documented, row[1])
	}
	require.Equal(t, named, documented)
}

func TestNumberOfSeriesDoesNotGrowWithThePeers(t *testing.T) {
	exchange(t, rnet.Auto, 10)()
	before := testutil.CollectAndCount(NewCollector())
	for range 5 {
		defer exchange(t, rnet.Auto, 10)()
	}
	require.Equal(t, before, testutil.CollectAndCount(NewCollector()))
}

func TestMetricsWithoutLabelsAreThereFromTheStart(t *testing.T) {
	require.NoError(t, testutil.CollectAndCompare(NewCollector(), strings.NewReader(`
		# HELP rnet_pin_limit_bytes Cap on registered memory that the program has set, 0: none.
		# TYPE rnet_pin_limit_bytes gauge
		rnet_pin_limit_bytes 0
	`), "rnet_pin_limit_bytes"))
}
