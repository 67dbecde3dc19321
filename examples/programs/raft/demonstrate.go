package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet"
)

// demonstrate lets a cluster lose its leader, and find another.
func demonstrate(ctx context.Context, count int, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "raft")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c, err := startCluster(ctx, dir, rnet.Dialer{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()

	w := writer{cluster: c, name: "entry"}
	if err := w.appendAll(ctx, count, out); err != nil {
		return err
	}
	dead, err := c.leader(ctx)
	if err != nil {
		return err
	}
	if err := dead.kill(); err != nil {
		return err
	}
	fmt.Fprintln(out, "the leader is dead")
	if err := w.appendAll(ctx, count, out); err != nil {
		return err
	}
	if err := dead.start(ctx); err != nil {
		return err
	}
	fmt.Fprintln(out, "the dead node is back")
	entries, err := c.agree(ctx)
	if err != nil {
		return err
	}
	if err := w.verify(entries); err != nil {
		return err
	}
	fmt.Fprintf(out, "all three have the same %d entries\n", len(entries))
	for i, m := range c.members {
		var got map[string]string
		if err := c.call(ctx, m, "Transports", struct{}{}, &got); err != nil {
			return err
		}
		for node, transport := range got {
			fmt.Fprintf(out, "transport from node %d to %s: %s\n", i, node, transport)
		}
	}
	return nil
}

// pause is how long it takes until one asks again.
const pause = 10 * time.Millisecond

// writer appends numbered entries, one after the other.
type writer struct {
	cluster *cluster
	name    string
	tried   int   // the number of the last entry
	stored  []int // the numbers of those that are known to be stored
}

// append tries to append one entry. If that fails, the entry may be stored or
// not.
func (w *writer) append(ctx context.Context) error {
	leader, err := w.cluster.leader(ctx)
	if err != nil {
		return err
	}
	w.tried++
	var count int
	err = w.cluster.call(ctx, leader, "Append", w.entry(w.tried), &count)
	if err == nil {
		w.stored = append(w.stored, w.tried)
	}
	return err
}

func (w *writer) entry(number int) string { return fmt.Sprintf("%s %d", w.name, number) }

// appendAll appends so many entries, however often it has to try, and prints
// how long that took.
func (w *writer) appendAll(ctx context.Context, count int, out io.Writer) error {
	begin, failures := time.Now(), 0
	for done := 0; done < count; {
		err := w.append(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			done++
		default:
			failures++
			time.Sleep(pause)
		}
	}
	fmt.Fprintf(out, "%d entries in %v, after %d failures\n", count, time.Since(begin).Round(time.Millisecond), failures)
	return nil
}

// verify checks that all entries of the writer that are known to be stored are
// there, in order, and that nothing of it is there twice.
func (w *writer) verify(entries []string) error {
	last := -1
	for number := 1; number <= w.tried; number++ {
		at := slices.Index(entries, w.entry(number))
		_, known := slices.BinarySearch(w.stored, number)
		switch {
		case at < 0 && known:
			return fmt.Errorf("%q is lost", w.entry(number))
		case at < 0:
			continue
		case at < last:
			return fmt.Errorf("%q is out of order", w.entry(number))
		case slices.Contains(entries[at+1:], w.entry(number)):
			return fmt.Errorf("%q is there twice", w.entry(number))
		}
		last = at
	}
	return nil
}

// agree waits until all nodes have the same entries as the leader, with nobody
// appending more, and returns them.
func (c *cluster) agree(ctx context.Context) ([]string, error) {
	for {
		var all [][]string
		for _, m := range c.members {
			var entries []string
			if c.call(ctx, m, "Entries", struct{}{}, &entries) == nil {
				all = append(all, entries)
			}
		}
		if len(all) == len(c.members) && slices.Equal(all[0], all[1]) && slices.Equal(all[0], all[2]) {
			return all[0], nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, fmt.Errorf("the nodes do not agree: %w", context.Cause(ctx))
		}
	}
}
