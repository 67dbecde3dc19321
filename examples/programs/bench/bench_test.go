package main

import (
	"bytes"
	"io"
	"net"
	"os"
	"testing"

	"github.com/seed-b9b531af/ramjet/bench/harness"
	"github.com/stretchr/testify/require"
)

// TestMain lets the test program be the measured processes too.
func TestMain(m *testing.M) {
	harness.Begin(programs...)
	os.Exit(m.Run())
}

func TestEachProgramMakesCallsOneAtATimeAndMany(t *testing.T) {
	var out bytes.Buffer
	args := []string{"-rounds", "1", "-duration", "20ms", "-warmup", "1ms", "-transport", "tcp,ramjet", "-run", "/(1|64)$"}
	require.NoError(t, harness.Run(t.Context(), args, &out, io.Discard), &out)
	for _, p := range programs {
		require.Regexp(t, p.Title+`, 1 call +[0-9.]+ k?/s`, out.String())
		require.Regexp(t, p.Title+`, 64 calls +[0-9.]+ k?/s`, out.String())
	}
	require.NotContains(t, out.String(), "net/rpc")
}

func TestWhatIsNoRedisCommandIsAnError(t *testing.T) {
	for text, says := range map[string]string{
		"GET x\r\n":             "was due",
		"*0\r\n":                "a command of 0 strings",
		"*1\r\n$9999999999\r\n": "a string of 9999999999 bytes",
		"*1\r\n$4\r\nPI":        "unexpected EOF",
	} {
		near, far := net.Pipe()
		answered := make(chan error, 1)
		go func() { answered <- answerCommands(far) }()
		go func() {
			io.WriteString(near, text)
			near.Close()
		}()
		require.ErrorContains(t, <-answered, says, "%q", text) // ended by the text, or the close
		far.Close()
	}
}
