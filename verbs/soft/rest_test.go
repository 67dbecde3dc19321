//go:build linux

package soft_test

import (
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft"
	"github.com/stretchr/testify/require"
)

// awaitRest returns when nobody reads the links of the QPs any more.
func awaitRest(t *testing.T, qps ...*verbs.QP) {
	t.Helper()
	for _, q := range qps {
		require.Eventually(t, func() bool { return soft.LinkRests(q) }, 10*time.Second, time.Millisecond)
	}
}

// What is said to a link that nobody reads has it read again, until nothing is said.
func TestALinkThatRestsHearsWhatIsSaid(t *testing.T) {
	soft.PairAsStrangers(t)
	soft.CheckLeaks(t)
	a, b := newPair(t, usual)
	for range 3 {
		awaitRest(t, a.qp, b.qp)
		mr, err := b.pd.AllocMR(1, everyRight, verbs.MROptions{})
		require.NoError(t, err)
		require.Equal(t, verbs.WCSuccess, a.writeTo(t, mr), "a key that has to be asked for")
		awaitRest(t, a.qp, b.qp)
		require.NoError(t, mr.Close())
		require.Equal(t, verbs.WCSuccess, a.writeTo(t, b.mr))
	}
}

// strangersAtRest returns a pair whose links nobody reads. The first has a receive.
func strangersAtRest(t *testing.T) (a, b *end) {
	t.Helper()
	soft.PairAsStrangers(t)
	soft.CheckLeaks(t)
	a, b = newPair(t, usual)
	_, err := a.qp.PostRecv(make([]verbs.RecvWR, 1))
	require.NoError(t, err)
	awaitRest(t, a.qp, b.qp)
	return a, b
}

func TestALinkThatRestsHearsOfTheEnd(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, b *end){
		"ERR":     func(t *testing.T, b *end) { require.NoError(t, b.qp.Fail()) },
		"Destroy": func(t *testing.T, b *end) { require.NoError(t, b.qp.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := strangersAtRest(t)
			end(t, b)
			drainUntilFlushed(t, a)
		})
	}
	t.Run("death", func(t *testing.T) {
		soft.CheckLeaks(t)
		e, err := makeEnd(usual)
		require.NoError(t, err)
		c := startChild(t, "idle", e)
		_, err = e.qp.PostRecv(make([]verbs.RecvWR, 1))
		require.NoError(t, err)
		awaitRest(t, e.qp)
		c.kill()
		drainUntilFlushed(t, e)
		require.NoError(t, e.close())
	})
}

// A peer that does not read is given up though nobody reads the link either.
func TestALinkThatRestsIsShutForAPeerThatDoesNotRead(t *testing.T) {
	a, _ := strangersAtRest(t)
	soft.ShutLink(a.qp)
	drainUntilFlushed(t, a)
}
