package rnet

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/stretchr/testify/require"
)

func TestExplainTellsTheNewestDecisionLast(t *testing.T) {
	const addr = "192.0.2.1:1"
	decided.Record(fallback.Decision{Addr: addr, Transport: fallback.TCP, Reason: fallback.NoListener})
	decided.Record(fallback.Decision{Addr: addr, Transport: fallback.Soft})
	told := Explain(addr)
	require.Len(t, told, 2)
	require.Equal(t, "no-listener", told[0].Reason)
	require.Contains(t, told[0].String(), "tcp: no-listener: ")
	require.Contains(t, told[0].String(), told[0].Remedy)
	require.Equal(t, "soft", told[1].String())
}
