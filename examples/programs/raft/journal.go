package main

import (
	"encoding/json"
	"io"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
)

// journal is the state that raft replicates: all entries, in order.
type journal struct {
	mu      sync.Mutex
	entries []string // guarded by mu
}

// Apply appends an entry that a majority has, and returns how many there are.
func (j *journal) Apply(entry *raft.Log) any {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, string(entry.Data))
	return len(j.entries)
}

// all returns a copy of the entries.
func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.entries)
}

// Snapshot returns what Restore takes.
func (j *journal) Snapshot() (raft.FSMSnapshot, error) { return snapshot(j.all()), nil }

// Restore replaces the entries by those of a snapshot.
func (j *journal) Restore(r io.ReadCloser) error {
	defer r.Close()
	var entries []string
	if err := json.NewDecoder(r).Decode(&entries); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = entries
	return nil
}

type snapshot []string

func (s snapshot) Persist(sink raft.SnapshotSink) error {
	if err := json.NewEncoder(sink).Encode([]string(s)); err != nil {
		sink.Cancel()
		return err
	}
	return sink.Close()
}

func (snapshot) Release() {}
