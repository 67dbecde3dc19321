package rnet

import (
	"bytes"
	"runtime/trace"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTraceShowsDialsAndSleeps(t *testing.T) {
	if trace.IsEnabled() {
		t.Skip("the tests themselves are traced")
	}
	awaitNoSessions(t)
	var out bytes.Buffer
	require.NoError(t, trace.Start(&out))
	defer trace.Stop()
	k := overSoft
	k.profile = Efficient // sleeps at once
	dialed, accepted := k.streams(t)
	parks := func() uint64 { // and not on the thread, if two wait
		return sumOf(t, "soft0").Parks
	}
	before := parks()
	await := hang.Start(t, func() { assert.NoError(t, traffic.RoundTrip(dialed)) })
	hang.Eventually(t, "the reader is parked", func() bool { return parks() > before })
	buf := make([]byte, 100)
	n, err := accepted.Read(buf)
	require.NoError(t, err)
	_, err = accepted.Write(buf[:n])
	require.NoError(t, err)
	await()
	trace.Stop()
	for _, name := range []string{"rnet.dial", "rnet.session", "rnet.park", "rnet.engine"} {
		require.True(t, bytes.Contains(out.Bytes(), []byte(name)), name)
	}
}

func TestRegionsCostNothingWithoutATrace(t *testing.T) {
	if trace.IsEnabled() {
		t.Skip("the tests themselves are traced")
	}
	require.Zero(t, testing.AllocsPerRun(1000, func() { region("rnet.park").End() }))
}

func BenchmarkRegionWithoutATrace(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		region("rnet.park").End()
	}
}
