package wire_test

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs/guest/internal/wire"
)

func TestMessagesArriveAsTheyWereSent(t *testing.T) {
	var stream bytes.Buffer
	long := []byte(strings.Repeat("long", wire.MaxPayload/4) + "more")
	require.NoError(t, wire.Write(&stream, wire.Ready, nil))
	require.NoError(t, wire.Write(&stream, wire.Stdout, long))
	require.NoError(t, wire.Write(&stream, wire.Exit, wire.Status{Code: 3}.Append(nil)))
	for _, want := range []struct {
		kind    wire.Kind
		payload []byte
	}{
		{wire.Ready, []byte{}},
		{wire.Stdout, long[:wire.MaxPayload]},
		{wire.Stdout, []byte("more")},
		{wire.Exit, []byte{3, 0}},
	} {
		kind, payload, err := wire.Read(&stream)
		require.NoError(t, err)
		require.Equal(t, want.kind, kind)
		require.Equal(t, want.payload, payload)
	}
	_, _, err := wire.Read(&stream)
	require.Equal(t, io.EOF, err)
}

func TestBrokenStreamsAreErrors(t *testing.T) {
	for _, c := range []struct {
		stream string
		want   error
	}{
		{"o", io.ErrUnexpectedEOF},
		{"o\x05\x00\x00\x00", io.ErrUnexpectedEOF},
		{"o\x05\x00\x00\x00four", io.ErrUnexpectedEOF},
		{"o\x01\x00\x01\x00", wire.ErrTooLong},
		{"o\xff\xff\xff\xff", wire.ErrTooLong},
	} {
		_, _, err := wire.Read(strings.NewReader(c.stream))
		require.ErrorIs(t, err, c.want, "%q", c.stream)
	}
}

func TestStatusIsAShellsStatus(t *testing.T) {
	for _, c := range []struct {
		status wire.Status
		want   int
	}{
		{wire.Status{}, 0},
		{wire.Status{Code: 7}, 7},
		{wire.Status{Signal: 9}, 137},
	} {
		parsed, err := wire.ParseStatus(c.status.Append(nil))
		require.NoError(t, err)
		require.Equal(t, c.status, parsed)
		require.Equal(t, c.want, parsed.ExitCode())
	}
	_, err := wire.ParseStatus([]byte{1})
	require.Error(t, err)
}
