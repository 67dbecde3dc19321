package verbs

import (
	"io"
	"runtime/trace"
	"testing"

	"github.com/stretchr/testify/require"
)

// endingQP is a QP whose device answers to Destroy as it is told.
type endingQP struct {
	countingQP
	answer error
}

func (q *endingQP) Destroy() error { return q.answer }

// completing is a CQ with completions of QP 5.
type completing struct{ CQDriver }

func (completing) Poll(wcs []WC) (int, error) {
	wcs[0] = WC{ID: 1, QPN: 5}
	return 1, nil
}

// tracedQP is a QP with number 5.
func tracedQP(ctx *Context) (*QP, *endingQP) {
	drv := &endingQP{countingQP: countingQP{attr: QPAttr{State: QPStateRTS}}}
	return &QP{ctx: ctx, num: 5, drv: drv, attr: QPInitAttr{Type: QPTypeUC}, plain: plainOperations(QPTypeUC, 0)}, drv
}

func tracedContext() *Context { return &Context{drv: tracedDevice{}, mrs: make(map[*MR]struct{})} }

type tracedDevice struct{ twoPorts }

func (tracedDevice) Close() error { return nil }

func send(t *testing.T, qp *QP) {
	t.Helper()
	n, err := qp.PostSend([]SendWR{{ID: 1, Opcode: OpSend, Flags: SendSignaled}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// startTrace has tasks be made.
func startTrace(t *testing.T) {
	t.Helper()
	if trace.IsEnabled() {
		t.Skip("a trace is written already")
	}
	require.NoError(t, trace.Start(io.Discard))
	t.Cleanup(trace.Stop)
}

func TestATracerKeepsWhatIsUnderWayOnAQPThatIsBusy(t *testing.T) {
	startTrace(t)
	for _, tracer := range []*Tracer{NewTaskTracer(), NewPacketTracer(io.Discard)} {
		ctx := tracedContext()
		ctx.SetTracer(tracer)
		qp, drv := tracedQP(ctx)
		send(t, qp)
		drv.answer = ErrBusy
		require.ErrorIs(t, qp.Close(), ErrBusy)
		require.Equal(t, 1, underWay(tracer))
		drv.answer = nil
		require.NoError(t, qp.Close())
		require.Zero(t, underWay(tracer))
	}
}

// underWay is how many tasks or flows a tracer has.
func underWay(t *Tracer) int {
	if t.tasks != nil {
		return t.Tasks()
	}
	return t.Flows()
}

func TestASecondCloseEndsNothingOfTheNextQPOfThatNumber(t *testing.T) {
	startTrace(t)
	ctx := tracedContext()
	tracer := NewTaskTracer()
	ctx.SetTracer(tracer)
	former, drv := tracedQP(ctx)
	require.NoError(t, former.Close())
	drv.answer = ErrClosed
	next, _ := tracedQP(ctx)
	send(t, next)
	require.NoError(t, former.Close())
	require.Equal(t, 1, tracer.Tasks())
}

func TestATaskEndsWithTheCompletionOfItsOwnDevice(t *testing.T) {
	startTrace(t)
	tracer := NewTaskTracer()
	one, other := tracedContext(), tracedContext()
	one.SetTracer(tracer)
	other.SetTracer(tracer)
	qp, _ := tracedQP(one)
	send(t, qp)
	_, err := (&CQ{ctx: other, drv: completing{}}).Poll(make([]WC, 1))
	require.NoError(t, err)
	require.Equal(t, 1, tracer.Tasks(), "QP 5 of the other device has completed a request")
	_, err = (&CQ{ctx: one, drv: completing{}}).Poll(make([]WC, 1))
	require.NoError(t, err)
	require.Zero(t, tracer.Tasks())
}

func TestATracerForgetsADeviceThatIsClosedOrThatItLeaves(t *testing.T) {
	startTrace(t)
	for name, leave := range map[string]func(*Context) error{
		"closed":         (*Context).Close,
		"no tracer":      func(c *Context) error { c.SetTracer(nil); return nil },
		"another tracer": func(c *Context) error { c.SetTracer(&Tracer{}); return nil },
	} {
		for _, tracer := range []*Tracer{NewTaskTracer(), NewPacketTracer(io.Discard)} {
			ctx, stays := tracedContext(), tracedContext()
			for _, c := range []*Context{ctx, stays} {
				c.SetTracer(tracer)
				qp, _ := tracedQP(c)
				send(t, qp)
			}
			require.Equal(t, 2, underWay(tracer))
			require.NoError(t, leave(ctx))
			require.Equal(t, 1, underWay(tracer), name)
		}
	}
}
