package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// traffic is requests of any kind and size for a time, each of which is compared.
func (t *deviceTest) traffic(ctx context.Context, l *loop, most time.Duration) error {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	caps := t.ctx.Attr().Caps
	requests, compared := 0, 0
	began := time.Now()
	for time.Since(began) < most && ctx.Err() == nil {
		from, to := l, l.reversed()
		if random.IntN(2) == 0 {
			from, to = to, from
		}
		n := 1 + random.IntN(1<<random.IntN(19))
		at := random.IntN(1 << 20)
		fill(from.a.mr.Bytes()[:n], requests)
		opcode := verbs.OpSend
		var err error
		switch kind := random.IntN(3); {
		case kind == 1:
			opcode = verbs.OpWrite
			if err = from.do(verbs.SendWR{Opcode: opcode, RemoteAddr: uint64(remoteOffset + at), SGL: []verbs.SGE{from.a.mr.SGE(0, n)}}); err == nil {
				err = from.placed()
			}
			if err == nil {
				err = sameBytes(from.a.mr.Bytes()[:n], from.b.mr.Bytes()[remoteOffset+at:][:n])
			}
		case kind == 2 && caps.Has(verbs.CapRead):
			opcode = verbs.OpRead
			if t.answeredWronglyBySIW(at, n) {
				at -= at % leastPage
			}
			fill(from.b.mr.Bytes()[remoteOffset+at:][:n], ^requests)
			if err = from.do(verbs.SendWR{Opcode: opcode, RemoteAddr: uint64(remoteOffset + at), SGL: []verbs.SGE{from.a.mr.SGE(0, n)}}); err == nil {
				err = sameBytes(from.b.mr.Bytes()[remoteOffset+at:][:n], from.a.mr.Bytes()[:n])
			}
		default:
			if err = from.message(verbs.SendWR{Opcode: opcode, SGL: []verbs.SGE{from.a.mr.SGE(0, n)}}, n, nil); err == nil {
				err = sameBytes(from.a.mr.Bytes()[:n], from.b.mr.Bytes()[:n])
			}
		}
		if err != nil {
			return fmt.Errorf("request %d, %v of %d bytes: %w", requests, opcode, n, err)
		}
		requests++
		compared += n
	}
	t.figures = fmt.Sprintf(": %d requests, %d MiB compared, in %v", requests, compared>>20, time.Since(began).Round(time.Millisecond))
	return nil
}
