package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheEndSaysWhatWasSkippedAndHowToRunIt(t *testing.T) {
	events := strings.Join([]string{
		`{"Action":"run","Package":"p","Test":"TestA"}`,
		`{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:1: needs RDMA devices: do this\n"}`,
		`{"Action":"skip","Package":"p","Test":"TestA"}`,
		`{"Action":"output","Package":"p","Test":"TestB","Output":"    a_test.go:2: another reason\n"}`,
		`{"Action":"skip","Package":"p","Test":"TestB"}`,
		`{"Action":"output","Package":"p","Test":"TestC","Output":"    a_test.go:3: what went wrong\n"}`,
		`{"Action":"fail","Package":"p","Test":"TestC"}`,
		`{"Action":"output","Package":"p","Test":"TestD","Output":"chatter\n"}`,
		`{"Action":"pass","Package":"p","Test":"TestD/sub"}`,
		`{"Action":"pass","Package":"p","Test":"TestD"}`,
		`{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}`,
		`{"Action":"fail","Package":"p"}`,
	}, "\n")
	var s summary
	var out bytes.Buffer
	require.NoError(t, s.read(strings.NewReader(events), &out))
	s.write(&out)
	require.Equal(t, `    a_test.go:3: what went wrong
FAIL	p	0.1s
1 tests passed, 1 failed, 2 skipped:
    1 need RDMA devices of the kernel: CONTRIBUTING.md, "RDMA devices", or all of them: .ci/run guest
      TestB of p: another reason
`, out.String())
}
