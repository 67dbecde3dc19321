package ring

import (
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"slices"
	"strings"
	"testing"
)

// state is one of a system that explore goes through.
type state interface {
	// successors yields each step that some actor can take, by name, with a
	// function that returns the state after it, or the rule that the step
	// breaks. A state without successors is final.
	successors() iter.Seq2[string, func() (state, error)]
	// final returns the rule that the state breaks by being final, nil if none.
	final() error
	// encode appends everything that decides about the future, so that two
	// states with equal encodings need only be explored once.
	encode(buf []byte) []byte
}

// errRestless is the violation of a run that comes back to where it was:
// states hold what is left to do, so it could go round for ever.
var errRestless = errors.New("never comes to rest")

// explorer walks through every state that can be reached, depth first. Known
// states are told by 128 bits of hash: with 10 million states the probability
// that two were taken for one is below 10^-24.
type explorer struct {
	seen    map[[2]uint64]bool // true while the state is on the current path
	seeds   [2]maphash.Seed
	buf     []byte
	path    []string
	finals  int
	deepest int
}

// explore visits everything that can be reached from s and returns the first
// violation, nil if there is none.
func explore(t testing.TB, s state) *violation {
	e := &explorer{
		seen:  make(map[[2]uint64]bool),
		seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
	}
	v := e.visit(s)
	t.Logf("%d states, %d of them final, up to %d steps deep", len(e.seen), e.finals, e.deepest)
	return v
}

// violation is a broken rule with the steps that lead to it.
type violation struct {
	rule error
	path []string
}

func (v *violation) String() string {
	return fmt.Sprintf("%v\nafter %d steps:\n  %s", v.rule, len(v.path), strings.Join(v.path, "\n  "))
}

func (e *explorer) visit(s state) (v *violation) {
	e.buf = s.encode(e.buf[:0])
	key := [2]uint64{maphash.Bytes(e.seeds[0], e.buf), maphash.Bytes(e.seeds[1], e.buf)}
	if onPath, known := e.seen[key]; onPath {
		return e.violation(errRestless)
	} else if known {
		return nil
	}
	e.seen[key] = true
	defer func() { e.seen[key] = false }()
	e.deepest = max(e.deepest, len(e.path))

	final := true
	for action, step := range s.successors() {
		final = false
		e.path = append(e.path, action)
		next, err := step()
		if err != nil {
			return e.violation(err)
		}
		if v := e.visit(next); v != nil {
			return v
		}
		e.path = e.path[:len(e.path)-1]
	}
	if final {
		e.finals++
		if err := s.final(); err != nil {
			return e.violation(err)
		}
	}
	return nil
}

func (e *explorer) violation(rule error) *violation {
	return &violation{rule: rule, path: slices.Clone(e.path)}
}
