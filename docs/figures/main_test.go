package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheDocumentsShowTheFiguresOfTheRuns(t *testing.T) {
	parts, err := readParts("..")
	require.NoError(t, err)
	for _, name := range documents {
		text, err := os.ReadFile(filepath.Join("..", name))
		require.NoError(t, err)
		want, err := replace(string(text), parts)
		require.NoError(t, err)
		require.Equal(t, want, string(text), "go run ./docs/figures")
	}
}

// Figures of different machines, or of a busy one, do not belong beside each other.
func TestAllFiguresAreOfOneIdleMachine(t *testing.T) {
	machine := regexp.MustCompile(`^(.*), (\d+)% idle before\n`)
	var first string
	for _, name := range []string{"bench.txt", "programs.txt"} {
		text, err := os.ReadFile(filepath.Join("..", name))
		require.NoError(t, err)
		found := machine.FindStringSubmatch(string(text))
		require.NotEmpty(t, found, "%s does not say how idle the machine was", name)
		idle, err := strconv.Atoi(found[2])
		require.NoError(t, err)
		require.GreaterOrEqual(t, idle, 80, name)
		if first == "" {
			first = found[1]
		}
		require.Equal(t, first, found[1], name)
	}
	// The picture is of the run of bench.txt: its first row has the same ratio.
	text, err := os.ReadFile("../bench.txt")
	require.NoError(t, err)
	ratio := regexp.MustCompile(`(?m)^round trip, 64 B +p50 .* ([\d.]+x)$`).FindStringSubmatch(string(text))
	require.NotEmpty(t, ratio)
	picture, err := os.ReadFile("../bench.svg")
	require.NoError(t, err)
	require.Contains(t, string(picture), ratio[1])
}

func TestARunThatCannotBeShownIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":   "",
		"no tables": "amd64, 2 CPUs (A CPU), Linux 6.1, go1.26\n",
		"no rows":   "amd64, 2 CPUs (A CPU), Linux 6.1, go1.26\nclosed loop\n\nround trip, 64 B  p50  1 us  1 us  1x  1 us  1x\n",
		"failures":  "amd64, 2 CPUs (A CPU), Linux 6.1, go1.26\nclosed loop\n\n*** 3 failures:\n",
	} {
		_, err := transportTable(text)
		require.Error(t, err, name)
		_, err = programTable(text)
		require.Error(t, err, name)
	}
}

func TestADocumentKeepsWhatStandsAroundTheFigures(t *testing.T) {
	got, err := replace("a\n<!-- figures one: a remark -->\nold\n<!-- end of figures -->\nb\n<!-- figures two -->\n<!-- end of figures -->\n",
		map[string]string{"one": "1\n", "two": "2\n"})
	require.NoError(t, err)
	require.Equal(t, "a\n<!-- figures one: a remark -->\n1\n<!-- end of figures -->\nb\n<!-- figures two -->\n2\n<!-- end of figures -->\n", got)
	_, err = replace("<!-- figures three -->\n<!-- end of figures -->\n", map[string]string{})
	require.Error(t, err)
	_, err = replace("none", nil)
	require.Error(t, err)
}

func TestTheWorstFigureIsNamed(t *testing.T) {
	got, err := worst([]string{
		"                  TCP   Unix  ramjet  TCP   Unix  ramjet  TCP   Unix  ramjet  TCP   Unix  ramjet  TCP   Unix  ramjet",
		"echo, 1 call      1 /s  0.1<   2.0x   1 us  0.1<   1.0x   1 us  0.1<   0.50<  1 us  0.1<   1.00x  1 us  0.1<   0.90<",
		"echo, 64 calls    1 /s  0.1<   2.0x   1 us  0.1<   1.0x   1 us  0.1<   0.80<  1 us  0.1<   0.45<  1 us  0.1<   0.90<",
		"  the worst client                                       1 us  0.1<   0.20<",
	})
	require.NoError(t, err)
	require.Equal(t, "a p99.9 of 0.45x (echo, 64 calls)", got)
	_, err = worst(nil)
	require.Error(t, err)
}
