package verbsperf

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// measure runs the loop of one end. It returns the times of round trips, or of a stream
// the moments at which sixteenths of it were begun, and then those at which they were
// done, where there is something to tell.
func (s *side) measure(server bool) ([]time.Duration, error) {
	switch op := s.spec.operation(); {
	case !s.spec.latency():
		return s.stream(!server || s.spec.Both, server || s.spec.Both)
	case op == "write":
		return s.pingMemory(server)
	case op == "read" || op == "atomic":
		if server {
			return nil, nil
		}
		return s.ask()
	}
	return s.pingPong(server)
}

// warmUps is how many messages of each QP go ahead of the measurement. More than one, as the
// number of the last one is none that pingMemory begins with.
const warmUps = 2

// warmUp runs the loop for what is done once for a QP, a peer or a page of memory, which takes the
// software HCA milliseconds.
func (s *side) warmUp(server bool) ([]time.Duration, error) {
	n := s.spec.Iterations
	s.spec.Iterations = warmUps
	defer func() { s.spec.Iterations = n }()
	return s.measure(server)
}

// times has room for those of all iterations, at the client, which takes them.
func (s *side) times(server bool) []time.Duration {
	if server {
		return nil
	}
	return make([]time.Duration, 0, s.spec.Iterations)
}

// pingPong sends messages that use up a receive to and fro.
func (s *side) pingPong(server bool) ([]time.Duration, error) {
	wrs := []verbs.SendWR{s.request(0)}
	wrs[0].Flags |= verbs.SendSignaled
	var wcs [1]verbs.WC
	times := s.times(server)
	for i := range s.spec.Iterations {
		begin := time.Now()
		if !server {
			if err := s.post(0, wrs); err != nil {
				return nil, err
			}
		}
		if _, err := s.await(s.recv, wcs[:]); err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		if server {
			if err := s.post(0, wrs); err != nil {
				return nil, err
			}
		} else {
			times = append(times, time.Since(begin))
		}
		if err := s.receive(0, 1); err != nil {
			return nil, err
		}
		if _, err := s.await(s.send, wcs[:]); err != nil {
			return nil, err
		}
	}
	return times, nil
}

// pingMemory writes to and fro: who waits looks at the memory.
func (s *side) pingMemory(server bool) ([]time.Duration, error) {
	size := s.spec.Size
	wrs := []verbs.SendWR{s.request(0)}
	wrs[0].Flags |= verbs.SendSignaled
	mine := s.mr.Bytes()[size-4:]
	theirs := (*atomic.Uint32)(unsafe.Pointer(&s.mr.Bytes()[s.half+size-4]))
	var wcs [1]verbs.WC
	times := s.times(server)
	for i := range s.spec.Iterations {
		number := uint32(i + 1)
		(*atomic.Uint32)(unsafe.Pointer(&mine[0])).Store(number)
		begin := time.Now()
		if !server {
			if err := s.post(0, wrs); err != nil {
				return nil, err
			}
		}
		for idle := 1; theirs.Load() != number; idle++ {
			if idle%4096 == 0 && (time.Since(begin) > patience || s.life.Err() != nil) {
				return nil, errSilent
			}
		}
		if server {
			if err := s.post(0, wrs); err != nil {
				return nil, err
			}
		} else {
			times = append(times, time.Since(begin))
		}
		if _, err := s.await(s.send, wcs[:]); err != nil {
			return nil, err
		}
	}
	return times, nil
}

// ask posts one request that is answered after the other.
func (s *side) ask() ([]time.Duration, error) {
	wrs := []verbs.SendWR{s.request(0)}
	wrs[0].Flags |= verbs.SendSignaled
	var wcs [1]verbs.WC
	times := make([]time.Duration, 0, s.spec.Iterations)
	for range s.spec.Iterations {
		begin := time.Now()
		if err := s.post(0, wrs); err != nil {
			return nil, err
		}
		if _, err := s.await(s.send, wcs[:]); err != nil {
			return nil, err
		}
		times = append(times, time.Since(begin))
	}
	return times, nil
}

func (s *side) post(i int, wrs []verbs.SendWR) error {
	_, err := s.qps[i].PostSend(wrs)
	return err
}

// parts is in how many the work is cut to find its peak.
const parts = 16

// partsEnd is how many of all messages the first n parts have.
func partsEnd(total, n int) int { return total * n / parts }

// stream keeps up to Depth requests outstanding on each QP, if it sends, of which each Mod-th and
// the last are signaled, and takes as many messages as the other end sends.
func (s *side) stream(sends, receives bool) ([]time.Duration, error) {
	total := s.spec.Iterations * len(s.qps)
	toSend, toTake := 0, 0
	if sends {
		toSend = total
	}
	if receives && s.spec.uses() {
		toTake = total
	}
	requests := make([][]verbs.SendWR, len(s.qps))
	posted, done := make([]int, len(s.qps)), make([]int, len(s.qps))
	number := make(map[uint32]int, len(s.qps))
	for i, qp := range s.qps {
		requests[i] = []verbs.SendWR{s.request(i)}
		number[qp.Num()] = i
	}
	flags := s.request(0).Flags
	var wcs [64]verbs.WC
	var begun, ended []time.Duration // of each part
	begin := time.Now()
	var deadline time.Time
	for all, sent, taken, idle := 0, 0, 0, 0; sent < toSend || taken < toTake; {
		for i := range s.qps {
			for toSend > 0 && posted[i] < s.spec.Iterations && posted[i]-done[i] < s.spec.Depth {
				for len(begun) < parts && all >= partsEnd(total, len(begun)) {
					begun = append(begun, time.Since(begin))
				}
				all++
				posted[i]++
				requests[i][0].Flags = flags
				if posted[i]%s.spec.Mod == 0 || posted[i] == s.spec.Iterations {
					requests[i][0].Flags |= verbs.SendSignaled
				}
				if err := s.post(i, requests[i]); err != nil {
					return nil, err
				}
			}
		}
		completed, err := poll(s.send, wcs[:])
		if err != nil {
			return nil, err
		}
		for j := range wcs[:completed] { // each for those that were not signaled before it, too
			i := wcs[j].ID
			more := min(s.spec.Mod, s.spec.Iterations-done[i])
			done[i] += more
			sent += more
		}
		for toSend > 0 && len(ended) < parts && sent >= partsEnd(total, len(ended)+1) {
			ended = append(ended, time.Since(begin))
		}
		came, err := poll(s.recv, wcs[:])
		if err != nil {
			return nil, err
		}
		for j := range wcs[:came] {
			if err := s.receive(number[wcs[j].QPN], 1); err != nil {
				return nil, err
			}
		}
		if taken += came; completed+came > 0 {
			idle = 0
			continue
		}
		if err := s.idle(idle, &deadline); err != nil {
			return nil, err
		}
		idle++
	}
	return append(begun, ended...), nil
}
