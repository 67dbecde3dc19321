package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// latencies are round trips that are measured, and whether those who wait sleep.
var latencies = []latencyKind{
	{"SEND of 64 bytes and back, polling", verbs.OpSend, false},
	{"SEND of 64 bytes and back, with events", verbs.OpSend, true},
	{"WRITE of 64 bytes, polling", verbs.OpWrite, false},
	{"READ of 64 bytes, polling", verbs.OpRead, false},
	{"FETCH_AND_ADD, polling", verbs.OpFetchAdd, false},
}

type latencyKind struct {
	name   string
	opcode verbs.Opcode
	events bool
}

func (t *deviceTest) latency(l *loop, kind *latencyKind) error {
	const rounds, most = 2000, 300 * time.Millisecond
	round := l.there
	switch kind.opcode {
	case verbs.OpSend:
		round = l.thereAndBack
	case verbs.OpRead:
		if err := t.needs(verbs.CapRead); err != nil {
			return err
		}
	case verbs.OpFetchAdd:
		if err := t.needs(verbs.CapAtomics); err != nil {
			return err
		}
	}
	var took []time.Duration
	for began := time.Now(); len(took) < rounds && time.Since(began) < most; {
		start := time.Now()
		if err := round(kind); err != nil {
			return err
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	t.figures = fmt.Sprintf(": median %v, 99%% within %v, of %d", took[len(took)/2], took[len(took)*99/100], len(took))
	return nil
}

// there is a request and its completion.
func (l *loop) there(kind *latencyKind) error {
	n := 64
	if kind.opcode == verbs.OpFetchAdd {
		n = 8
	}
	return l.do(verbs.SendWR{Opcode: kind.opcode, SGL: []verbs.SGE{l.a.mr.SGE(0, n)}})
}

func (l *loop) thereAndBack(kind *latencyKind) error {
	for _, way := range [][2]*end{{l.a, l.b}, {l.b, l.a}} {
		from, to := way[0], way[1]
		recv, err := to.receive(128, 64)
		if err != nil {
			return err
		}
		sent, err := from.post(verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{from.mr.SGE(0, 64)}})
		if err != nil {
			return err
		}
		for kind.events && !to.has(recv) {
			if err := to.sleep(); err != nil {
				return err
			}
			if _, err := to.poll(); err != nil {
				return err
			}
		}
		if _, err := to.succeed(recv); err != nil {
			return err
		}
		if _, err := from.succeed(sent); err != nil {
			return err
		}
	}
	return nil
}
