// Package multicast keeps which multicast groups a queue pair is in.
package multicast

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// A Group is a multicast group.
type Group struct {
	GID verbs.GID
	LID uint16
}

// Groups are those of a QP. The kernel destroys no QP that has some.
type Groups struct {
	mu   sync.Mutex
	list []Group // guarded by mu
}

// Attach makes the QP a member of a group by that call.
func (s *Groups) Attach(g Group, call func(Group) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := call(g)
	if err == nil && !slices.Contains(s.list, g) {
		s.list = append(s.list, g)
	}
	return err
}

// Detach takes it out again.
func (s *Groups) Detach(g Group, call func(Group) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := call(g)
	if err == nil {
		s.list = slices.DeleteFunc(s.list, func(other Group) bool { return other == g })
	}
	return err
}

// Destroy takes the QP out of its groups and destroys it by those calls. If that fails, but for
// verbs.ErrClosed, the QP is still there: it is put into them again, and the error says which it is
// not in any more because that has failed. That it could not be taken out of one shows when it is
// destroyed.
func (s *Groups) Destroy(attach, detach func(Group) error, destroy func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var left []Group
	s.list = slices.DeleteFunc(s.list, func(g Group) bool {
		if detach(g) != nil {
			return false
		}
		left = append(left, g)
		return true
	})
	err := destroy()
	if err == nil || errors.Is(err, verbs.ErrClosed) {
		s.list = nil
		return err
	}
	for _, g := range left {
		if lost := attach(g); lost != nil {
			// that is not why it is there still
			err = fmt.Errorf("%w; and it is no longer in multicast group %v: %v", err, g.GID, lost)
			continue
		}
		s.list = append(s.list, g)
	}
	return err
}
