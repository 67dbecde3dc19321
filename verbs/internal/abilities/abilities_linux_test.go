package abilities

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	_ "github.com/seed-b9b531af/ramjet/verbs/soft"
)

func TestTheTableIsOfTheRecordedDevices(t *testing.T) {
	devices, err := Recorded()
	require.NoError(t, err)
	doc, err := os.ReadFile("../../../docs/verbs.md")
	require.NoError(t, err)
	want, err := Put(doc, Table(devices))
	require.NoError(t, err)
	require.Equal(t, string(want), string(doc), "go run ./verbs/internal/abilities/table writes it anew")
}

func TestTheSoftwareHCAIsAsRecorded(t *testing.T) {
	ctx, err := verbs.Open("soft0")
	require.NoError(t, err)
	defer ctx.Close()
	require.NoError(t, Compare(ctx, "soft"))
}

func TestAStaleRecordIsNoticed(t *testing.T) {
	ctx, err := verbs.Open("soft0")
	require.NoError(t, err)
	defer ctx.Close()
	require.ErrorContains(t, Compare(ctx, "another device"), LinePrefix)
}
