package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const log = `=== RUN   TestConformance
=== RUN   TestConformance/rxe0
=== RUN   TestConformance/rxe0/Timestamp
    timestamps.go:22: the device gives completions no time
=== RUN   TestConformance/rxe0/Transfer
=== RUN   TestConformance/rxe0/Transfer/SEND
=== RUN   TestConformance/rxe0/Transfer/SEND/0_bytes
=== RUN   TestConformance/rxe0/Transfer/READ
=== RUN   TestConformance/rxe0/Transfer/READ/0_bytes
    transfer.go:55: the device has no READ
=== RUN   TestConformance/siw0/Transfer/SEND
--- PASS: TestConformance (1.00s)
    --- PASS: TestConformance/rxe0 (1.00s)
        --- SKIP: TestConformance/rxe0/Timestamp (0.00s)
        --- PASS: TestConformance/rxe0/Transfer (0.00s)
            --- PASS: TestConformance/rxe0/Transfer/SEND (0.00s)
                --- PASS: TestConformance/rxe0/Transfer/SEND/0_bytes (0.00s)
            --- PASS: TestConformance/rxe0/Transfer/READ (0.00s)
                --- SKIP: TestConformance/rxe0/Transfer/READ/0_bytes (0.00s)
    --- PASS: TestConformance/siw0 (1.00s)
        --- PASS: TestConformance/siw0/Transfer/WRITE (0.00s)
PASS
ok  	example.com/ramjet/verbs/uverbs	1.000s
=== RUN   TestConnects
=== RUN   TestConnects/rxe0_IPv4
=== RUN   TestConnects/siw0_IPv4
    x.go:1: iWARP: not here: go test -exec GUEST
--- PASS: TestConnects (1.00s)
    --- PASS: TestConnects/rxe0_IPv4 (0.00s)
    --- SKIP: TestConnects/siw0_IPv4 (0.00s)
--- PASS: TestWhole (1.00s)
--- PASS: TestOther (1.00s)
ok  	example.com/ramjet/rcm	1.000s
`

func TestALogSaysWhatRanAndWhyNot(t *testing.T) {
	groups := []string{"Transfer", "Timestamp"}
	named := beside("| a | `rcm.TestConnects`, `rcm.TestWhole`, `Transfer/SEND`, `PKeyIndex` |\n")
	require.Equal(t, []string{"rcm.TestConnects", "rcm.TestWhole"}, named)
	got, err := parse(log, "rxe0", groups, named)
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"Timestamp":        "skipped: the device gives completions no time",
		"Transfer/SEND":    ran,
		"Transfer/READ":    "skipped: the device has no READ",
		"rcm.TestConnects": ran, "rcm.TestWhole": ran,
	}, got)
	got, err = parse(log, "siw0", groups, named)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"Transfer/WRITE": ran, "rcm.TestConnects": "skipped: iWARP: not here", "rcm.TestWhole": ran}, got)
	_, err = parse("    --- FAIL: TestConformance/rxe0/Transfer (0.00s)\n", "", groups, named)
	require.Error(t, err)
	_, err = parse("PASS\n", "", groups, named)
	require.Error(t, err)
}

func TestARowSaysWhatRanOnEachDevice(t *testing.T) {
	r := results{
		"A/one_thing":     {"soft": ran, "rxe": "skipped: no one", "rxe 6.12": ran, "siw": ran, "mlx5": ran, "libmlx5": ran},
		"A/another":       {"soft": ran, "rxe": "skipped: no one", "rxe 6.12": ran, "siw": "skipped: no other", "mlx5": ran, "libmlx5": ran},
		"rcm.TestHere":    {"soft": ran, "rxe": "skipped: no one", "rxe 6.12": ran, "siw": ran},
		"verbs.TestFree":  {none: ran},
		"Gone":            {"siw": "skipped: all of it"},
		"Gone/everywhere": {"soft": ran, "rxe": ran, "rxe 6.12": ran, "mlx5": ran, "libmlx5": ran},
	}
	got, err := fill("| a | b |\n|---|---|\n| x | y |\n\n| pyverbs | ours |\n|---|---|\n"+
		"| t | `A/one thing`, `A/another` |\n| t | `PKeyIndex` | old | old | old | old |\n| t | `rcm.TestHere` |\n| t | `verbs.TestFree` |\n| t | `Gone/everywhere` |\n\n| x | y |\n", r)
	require.NoError(t, err)
	require.Equal(t, "| a | b |\n|---|---|\n| x | y |\n\n| pyverbs | ours | soft | rxe | rxe 6.12 | siw | mlx5 | libmlx5 |\n|---|---|---|---|---|---|---|---|\n"+
		"| t | `A/one thing`, `A/another` | ran | skipped: no one | ran | skipped: no other | ran | ran |\n"+
		"| t | `PKeyIndex` |  |  |  |  |  |  |\n| t | `rcm.TestHere` | ran | skipped: no one | ran | ran | not run | not run |\n"+
		"| t | `verbs.TestFree` | needs no device | needs no device | needs no device | needs no device | needs no device | needs no device |\n| t | `Gone/everywhere` | ran | ran | ran | skipped: all of it | ran | ran |\n\n| x | y |\n", got)
	_, err = fill("| pyverbs | ours |\n|---|---|\n| t | `A/unknown` |\n", r)
	require.ErrorContains(t, err, "A/unknown")
	_, err = fill("| pyverbs | ours |\n|---|---|\n| t | `rcm.TestUnknown` |\n", r)
	require.ErrorContains(t, err, "rcm.TestUnknown")
}
