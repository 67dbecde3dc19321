package verbsperf

import (
	"bytes"
	"flag"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUsageExplainsTheColumnsAndHasOneDefaultForEachFlag(t *testing.T) {
	var help bytes.Buffer
	_, err := parseOptions([]string{"-help"}, &help)
	require.ErrorIs(t, err, flag.ErrHelp)
	for _, column := range []string{"t_typical", "BW average", "BW peak", "MsgRate"} {
		require.Contains(t, help.String(), column)
	}
	for line := range strings.Lines(help.String()) {
		require.LessOrEqual(t, strings.Count(line, "(default"), 1, line)
	}
}

func TestWhatLooksAtMemoryPolls(t *testing.T) {
	o, err := parseOptions([]string{"-events", "-test", "send_lat,write_lat"}, io.Discard)
	require.NoError(t, err)
	for _, sp := range o.specs() {
		require.Equal(t, sp.Test == "send_lat", strings.Contains(sp.conditions(), "events"), sp.Test)
	}
}
