package rnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
)

// TestSoak keeps 200 streams busy for as long as -soak says, while the device
// misbehaves: completions come late and in batches, receives are missing,
// polls are slow, and in the second half of the time QPs fail and peers drop.
// Each stream sends both ways at once,
// in random pieces, with deadlines that pass, half closes, and now and then
// an abort. Every byte that arrives is checked; what must not fail may not.
// Devices of the kernel misbehave only by failing QPs.
func TestSoak(t *testing.T) {
	over(t, orKernel(overSoft), soakOver)
}

func soakOver(t *testing.T, k carrier) {
	s := &soak{carrier: k, end: time.Now().Add(*soakFor)}
	ln := k.listen(t)

	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { s.serve(t, c) })
		}
	})
	var dialing sync.WaitGroup
	for worker := range 200 {
		dialing.Go(func() {
			for round := uint64(0); time.Now().Before(s.end) && !t.Failed(); round++ {
				s.dial(t, ln.Addr().String(), uint64(worker)<<32|round)
			}
		})
	}
	if k.transport == RDMA {
		dialing.Go(func() { s.failQPs(t) })
	} else {
		dev, err := acquireDevice(soft.DeviceName)
		require.NoError(t, err)
		defer dev.release()
		dialing.Go(func() { s.misbehave(t, dev) })
	}
	await := hang.Start(t, func() { dialing.Wait() })
	for time.Now().Before(s.end) && !t.Failed() {
		time.Sleep(min(time.Second, time.Until(s.end)+time.Millisecond))
	}
	await()
	ln.Close()
	hang.Start(t, serving.Wait)()
	t.Logf("%d streams; of their ends %d came through, %d were aborted, %d lost with their session; %d MB checked, %d deadlines passed, %d sessions failed on purpose",
		s.streams.Load(), s.ended.Load(), s.aborted.Load(), s.lost.Load(), s.bytes.Load()>>20, s.deadlines.Load(), s.kills.Load())
	require.Positive(t, s.ended.Load(), "no stream came to its end")
}

type soak struct {
	carrier
	end                       time.Time
	streams, deadlines, bytes atomic.Int64
	ended, aborted, lost      atomic.Int64 // ends of streams
	// kills counts the faults that end sessions. A stream that lived through
	// one may have been reset.
	kills atomic.Int64
}

// misbehave changes what goes wrong every few hundred milliseconds.
func (s *soak) misbehave(t *testing.T, dev *device) {
	rnd := traffic.NewRand(1)
	faults := []soft.Faults{
		{},
		{CompletionDelay: 300 * time.Microsecond},
		{CompletionBatch: 7, CompletionDelay: time.Millisecond},
		{RNREvery: 40},
		{SlowConsumer: 20 * time.Microsecond},
		{CompletionBatch: 3, RNREvery: 100, SlowConsumer: 5 * time.Microsecond},
	}
	for time.Now().Before(s.end) && !t.Failed() {
		f := faults[rnd.IntN(len(faults))]
		lethal := rnd.IntN(8)
		if time.Until(s.end) > *soakFor/2 {
			lethal = -1 // until then each stream must come to its end
		}
		switch lethal {
		case 0:
			s.kills.Add(1)
			f.FailPostAt = 100 + rnd.IntN(5000)
		case 1:
			s.kills.Add(1)
			f.DropPeerAt = 100 + rnd.IntN(5000)
		}
		soft.InjectFaults(dev.ctx, &f)
		time.Sleep(time.Duration(50+rnd.IntN(300)) * time.Millisecond)
	}
	soft.InjectFaults(dev.ctx, nil)
}

// failQPs fails a QP now and then, in the second half of the time.
func (s *soak) failQPs(t *testing.T) {
	rnd := traffic.NewRand(1)
	time.Sleep(*soakFor / 2) // until then each stream must come to its end
	for time.Now().Before(s.end) && !t.Failed() {
		if live := liveSessions.list(); len(live) > 0 {
			s.kills.Add(1)
			live[rnd.IntN(len(live))].mux.Link().QP().Fail()
		}
		time.Sleep(time.Duration(500+rnd.IntN(1000)) * time.Millisecond)
	}
}

// soakPlan is what the two ends of a stream do: the dialing side sends it
// first.
type soakPlan struct {
	seed   uint64
	up     int // bytes that the dialing side sends
	down   int // bytes that the listening side sends
	aborts int // the dialing side resets the stream when it has sent so many; -1: it does not
}

const soakPlanLen = 32

func (p *soakPlan) marshal() []byte {
	b := make([]byte, soakPlanLen)
	binary.LittleEndian.PutUint64(b[0:], p.seed)
	binary.LittleEndian.PutUint64(b[8:], uint64(p.up))
	binary.LittleEndian.PutUint64(b[16:], uint64(p.down))
	binary.LittleEndian.PutUint64(b[24:], uint64(p.aborts))
	return b
}

func parseSoakPlan(b []byte) soakPlan {
	return soakPlan{
		seed: binary.LittleEndian.Uint64(b[0:]), up: int(binary.LittleEndian.Uint64(b[8:])),
		down: int(binary.LittleEndian.Uint64(b[16:])), aborts: int(int64(binary.LittleEndian.Uint64(b[24:]))),
	}
}

func newSoakPlan(seed uint64) soakPlan {
	rnd := traffic.NewRand(seed)
	size := func() int { return rnd.IntN(1 << (4 + rnd.IntN(17))) } // 0 to 1 MiB, mostly small
	p := soakPlan{seed: seed, up: size(), down: size(), aborts: -1}
	if rnd.IntN(10) == 0 {
		p.aborts = rnd.IntN(p.up + 1)
	}
	return p
}

// dial carries one stream through, from the dialing side.
func (s *soak) dial(t *testing.T, addr string, seed uint64) {
	kills := s.kills.Load()
	plan := newSoakPlan(seed)
	c, err := s.dialer().Dial("tcp", addr)
	if err != nil {
		if kills == s.kills.Load() && kills == 0 {
			t.Errorf("dial: %v", err)
		}
		time.Sleep(time.Millisecond)
		return
	}
	defer c.Close()
	s.streams.Add(1)
	rnd := traffic.NewRand(seed + 1)
	sent := make(chan error, 1)
	go func() {
		err := s.write(c, rnd, plan.marshal())
		if err == nil {
			err = s.send(c, rnd, plan.seed, plan.up, plan.aborts)
		}
		sent <- err
	}()
	err = errors.Join(s.receive(c, traffic.NewRand(seed+2), plan.seed+1<<63, plan.down), <-sent)
	s.check(t, "dialing", plan, err)
}

// serve carries one stream through, from the listening side.
func (s *soak) serve(t *testing.T, c net.Conn) {
	defer c.Close()
	b := make([]byte, soakPlanLen)
	rnd := rand.New(rand.NewPCG(3, 4))
	if err := s.read(c, rnd, b); err != nil {
		s.check(t, "listening", soakPlan{aborts: 0}, err) // it may be any plan
		return
	}
	plan := parseSoakPlan(b)
	sent := make(chan error, 1)
	go func() { sent <- s.send(c, traffic.NewRand(plan.seed+3), plan.seed+1<<63, plan.down, -1) }()
	err := errors.Join(s.receive(c, rnd, plan.seed, plan.up), <-sent)
	s.check(t, "listening", plan, err)
}

// check fails t unless err is nil or may be.
func (s *soak) check(t *testing.T, side string, plan soakPlan, err error) {
	gone := errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ENOTCONN) // of CloseWrite, after a reset
	switch {
	case err == nil:
		s.ended.Add(1)
	case errors.Is(err, errSoakData):
		t.Errorf("%s side, plan %+v: %v", side, plan, err)
	case plan.aborts >= 0 && gone:
		s.aborted.Add(1)
	case s.kills.Load() > 0 && gone:
		s.lost.Add(1)
	default:
		t.Errorf("%s side, plan %+v: %v", side, plan, err)
	}
}

var errSoakData = errors.New("wrong data")

// send writes n bytes of the pattern and half closes, or resets the stream
// after abort bytes.
func (s *soak) send(c net.Conn, rnd *rand.Rand, seed uint64, n, abort int) error {
	stop := n
	if abort >= 0 {
		stop = abort
	}
	buf := make([]byte, 40<<10)
	for at := 0; at < stop; {
		p := buf[:min(stop-at, 1+rnd.IntN(1<<rnd.IntN(16)))]
		traffic.Fill(p, seed, at)
		if err := s.write(c, rnd, p); err != nil {
			return err
		}
		at += len(p)
	}
	half := c.(*Conn)
	if abort >= 0 {
		half.SetLinger(0)
		return half.Close()
	}
	return half.CloseWrite()
}

// write writes all of p, through deadlines that pass.
func (s *soak) write(c net.Conn, rnd *rand.Rand, p []byte) error {
	for {
		if rnd.IntN(20) == 0 {
			c.SetWriteDeadline(time.Now().Add(time.Duration(rnd.IntN(2000)) * time.Microsecond))
		}
		n, err := c.Write(p)
		p = p[n:]
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		s.deadlines.Add(1)
		c.SetWriteDeadline(time.Time{})
	}
}

// receive reads n bytes of the pattern, and then the end.
func (s *soak) receive(c net.Conn, rnd *rand.Rand, seed uint64, n int) error {
	buf := make([]byte, 64<<10)
	for at := 0; ; {
		m, err := s.readSome(c, rnd, buf[:1+rnd.IntN(1<<(6+rnd.IntN(10)))])
		if bad := traffic.Check(buf[:m], seed, at); bad != nil {
			return fmt.Errorf("%w: %w", errSoakData, bad)
		}
		at += m
		s.bytes.Add(int64(m))
		if at > n || err == io.EOF && at < n {
			return fmt.Errorf("%w: %d bytes of %d, %v", errSoakData, at, n, err)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// readSome is one Read, through deadlines that pass.
func (s *soak) readSome(c net.Conn, rnd *rand.Rand, p []byte) (int, error) {
	for {
		if rnd.IntN(20) == 0 {
			c.SetReadDeadline(time.Now().Add(time.Duration(rnd.IntN(2000)) * time.Microsecond))
		}
		n, err := c.Read(p)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		s.deadlines.Add(1)
		c.SetReadDeadline(time.Time{})
	}
}

func (s *soak) read(c net.Conn, rnd *rand.Rand, p []byte) error {
	for at := 0; at < len(p); {
		n, err := s.readSome(c, rnd, p[at:])
		at += n
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return nil
}
