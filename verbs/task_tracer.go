package verbs

import (
	"context"
	"runtime/trace"
	"sync"
)

// NewTaskTracer returns a tracer that makes a task of runtime/trace of each send request that gives
// a completion, from before its post until the completion is polled: "go tool trace" shows under
// "User-defined tasks" how long they take, by operation. While no trace is written it costs a
// little of what the tasks do.
func NewTaskTracer() *Tracer {
	return &Tracer{tasks: &taskTracer{open: make(map[taskKey][]*trace.Task)}}
}

// taskTracer keeps the tasks whose requests have not completed.
type taskTracer struct {
	mu   sync.Mutex
	open map[taskKey][]*trace.Task // guarded by mu: of one ID the oldest at first
}

// taskKey is how a completion names its request.
type taskKey struct {
	device *Context
	qpn    uint32
	id     uint64
}

// completes reports whether a request gives a completion, if it does not fail.
func (qp *QP) completes(wr *SendWR) bool { return qp.attr.SignalAll || wr.Flags&SendSignaled != 0 }

// begin is called before a post: the completion may be polled before that returns.
func (t *taskTracer) begin(qp *QP, wrs []SendWR) {
	if !trace.IsEnabled() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range wrs {
		if wr := &wrs[i]; qp.completes(wr) {
			_, task := trace.NewTask(context.Background(), wr.Opcode.String())
			key := taskKey{qp.ctx, qp.num, wr.ID}
			t.open[key] = append(t.open[key], task)
		}
	}
}

// drop ends the tasks of what the device has not taken, the newest of each ID.
func (t *taskTracer) drop(qp *QP, wrs []SendWR) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range wrs {
		if key := (taskKey{qp.ctx, qp.num, wrs[i].ID}); qp.completes(&wrs[i]) {
			if list := t.open[key]; len(list) > 0 {
				list[len(list)-1].End()
				t.keep(key, list[:len(list)-1])
			}
		}
	}
}

// end ends the task of a completion.
func (t *taskTracer) end(c *Context, wc *WC) {
	if wc.Status == WCSuccess && wc.Opcode >= WCRecv {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	key := taskKey{c, wc.QPN, wc.ID}
	if list := t.open[key]; len(list) > 0 {
		list[0].End()
		t.keep(key, list[1:])
	}
}

func (t *taskTracer) keep(key taskKey, list []*trace.Task) {
	if len(list) == 0 {
		delete(t.open, key)
		return
	}
	t.open[key] = list
}

// closed ends the tasks of a QP that is gone or reset, whose completions nobody gets.
func (t *taskTracer) closed(qp *QP) {
	t.endAll(func(key taskKey) bool { return key.device == qp.ctx && key.qpn == qp.num })
}

// forget ends the tasks of a device, whose completions the tracer does not see.
func (t *taskTracer) forget(c *Context) {
	t.endAll(func(key taskKey) bool { return key.device == c })
}

func (t *taskTracer) endAll(over func(taskKey) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, list := range t.open {
		if over(key) {
			for _, task := range list {
				task.End()
			}
			delete(t.open, key)
		}
	}
}
