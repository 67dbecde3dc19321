package verbs_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/trace"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// TestTasksOfATraceLastFromPostToCompletion has "go tool trace" tell of the
// tasks of a few requests.
func TestTasksOfATraceLastFromPostToCompletion(t *testing.T) {
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("there is no go command:", err)
	}
	if trace.IsEnabled() {
		t.Skip("a trace is written already")
	}
	b := newBench(t)
	qp, peer := b.connected(t)
	tracer := verbs.NewTaskTracer()
	b.dev.SetTracer(tracer)
	post := func(qp *verbs.QP, flags verbs.SendFlags, ids ...uint64) int {
		t.Helper()
		wrs := make([]verbs.SendWR, len(ids))
		for i, id := range ids {
			wrs[i] = verbs.SendWR{ID: id, Opcode: verbs.OpSend, Flags: flags}
		}
		n, _ := qp.PostSend(wrs) // as many as fit
		return n
	}
	_, err = peer.PostRecv(make([]verbs.RecvWR, 5))
	require.NoError(t, err)
	require.Equal(t, 1, post(qp, verbs.SendSignaled, 1))
	require.Zero(t, tracer.Tasks(), "nobody writes a trace")

	var out bytes.Buffer
	require.NoError(t, trace.Start(&out))
	defer trace.Stop()
	require.Equal(t, 3, post(qp, verbs.SendSignaled, 5, 5, 6))
	require.Equal(t, 3, tracer.Tasks())
	require.Equal(t, 1, post(qp, 0, 7))
	require.Equal(t, 3, tracer.Tasks(), "it completes silently")
	b.poll(t, 9) // 4 requests, 5 receives
	require.Zero(t, tracer.Tasks())

	lonely := b.qp(t)
	require.NoError(t, toInit(lonely))
	require.Zero(t, post(lonely, verbs.SendSignaled, 8), "a QP in INIT sends nothing")
	require.Zero(t, tracer.Tasks())
	require.Equal(t, 1, post(qp, verbs.SendSignaled, 9))
	require.Equal(t, 1, tracer.Tasks())
	require.NoError(t, qp.Close())
	require.Zero(t, tracer.Tasks(), "its completion is nobody's")
	trace.Stop()
	b.dev.SetTracer(nil)

	name := filepath.Join(t.TempDir(), "trace")
	require.NoError(t, os.WriteFile(name, out.Bytes(), 0o600))
	text, err := exec.CommandContext(t.Context(), goTool, "tool", "trace", "-d=parsed", name).Output()
	require.NoError(t, err)
	var begun, ended int
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "TaskBegin") && strings.Contains(line, `Type="SEND"`) {
			begun++
		}
		if strings.Contains(line, "TaskEnd") && strings.Contains(line, `Type="SEND"`) {
			ended++
		}
	}
	require.Equal(t, 5, begun, "4 and that which was not taken")
	require.Equal(t, 5, ended)
}
