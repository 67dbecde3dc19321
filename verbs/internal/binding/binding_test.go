package binding_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/binding"
)

// queue is one of which so many completions were polled.
type queue struct {
	num    uint32
	polled uint64
}

func (q *queue) Executed(p binding.Place) bool { return q.polled >= p.Count }
func (q *queue) Num() uint32                   { return q.num }

func TestOneQPAtATimeBindsAWindow(t *testing.T) {
	var w binding.Window
	first, second := &queue{num: 1}, &queue{num: 2}
	_, err := w.Take(first, binding.Place{Count: 1})
	require.NoError(t, err)
	_, err = w.Take(second, binding.Place{Count: 1})
	require.ErrorIs(t, err, verbs.ErrBusy)
	_, err = w.Take(first, binding.Place{Count: 2})
	require.NoError(t, err, "its binds are executed in order")
	first.polled = 1
	_, err = w.Take(second, binding.Place{Count: 1})
	require.ErrorIs(t, err, verbs.ErrBusy, "its second one is under way")
	first.polled = 2
	_, err = w.Take(second, binding.Place{Count: 1})
	require.NoError(t, err)
	_, err = w.Take(first, binding.Place{Count: 3})
	require.ErrorIs(t, err, verbs.ErrBusy)
}

func TestABindThatIsNotPostedIsNotUnderWay(t *testing.T) {
	var w binding.Window
	first, second := &queue{num: 1}, &queue{num: 2}
	none, err := w.Take(first, binding.Place{Count: 1})
	require.NoError(t, err)
	one, err := w.Take(first, binding.Place{Count: 2})
	require.NoError(t, err)
	w.GiveBack(first, one)
	first.polled = 1
	before, err := w.Take(second, binding.Place{Count: 1})
	require.NoError(t, err)
	w.GiveBack(second, before)
	w.GiveBack(first, none)
	_, err = w.Take(second, binding.Place{Count: 1})
	require.NoError(t, err)
}

// A QP that fails while it posts a bind has lost the window to another one that has taken it.
func TestABindThatIsNotPostedLeavesThatOfAnotherQPAlone(t *testing.T) {
	var w binding.Window
	first, second, third := &queue{num: 1}, &queue{num: 2}, &queue{num: 3}
	before, err := w.Take(first, binding.Place{Count: 1})
	require.NoError(t, err)
	first.polled = 1 // as that of a QP which has failed, its bind counts as executed
	_, err = w.Take(second, binding.Place{Count: 1})
	require.NoError(t, err)
	w.GiveBack(first, before)
	_, err = w.Take(third, binding.Place{Count: 1})
	require.ErrorIs(t, err, verbs.ErrBusy)
}
