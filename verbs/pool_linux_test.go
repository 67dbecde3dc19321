package verbs_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// makeOneOfEach makes an object of each kind and returns what closes them, in order.
func makeOneOfEach(t *testing.T, c *verbs.Context) (closes []func() error) {
	t.Helper()
	made := func(err error, ends func() error) {
		t.Helper()
		require.NoError(t, err)
		closes = append([]func() error{ends}, closes...)
	}
	pd, err := c.AllocPD()
	made(err, pd.Close)
	ch, err := c.CreateCompChannel()
	made(err, ch.Close)
	cq, err := c.CreateCQ(verbs.CQAttr{CQE: 4}, ch)
	made(err, cq.Close)
	srq, err := pd.CreateSRQ(verbs.SRQAttr{MaxWR: 4, MaxSGE: 1})
	made(err, srq.Close)
	qp, err := pd.CreateQP(verbs.QPInitAttr{Type: verbs.QPTypeRC, SendCQ: cq, RecvCQ: cq, SRQ: srq})
	made(err, qp.Close)
	mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite, verbs.MROptions{})
	made(err, mr.Close)
	mw, err := pd.AllocMW(verbs.MWType2)
	made(err, mw.Close)
	gids, err := c.QueryGIDs(1)
	require.NoError(t, err)
	ah, err := pd.CreateAH(verbs.AddressVector{DGID: gids[0].GID, IsGlobal: true, Port: 1})
	made(err, ah.Close)
	return closes
}

func TestAPoolCountsWhatIsOpen(t *testing.T) {
	var pool verbs.Pool
	first, err := pool.Open("soft0")
	require.NoError(t, err)
	second, err := pool.Open("soft0")
	require.NoError(t, err)
	closes := makeOneOfEach(t, first)
	makeOneOfEach(t, second)
	require.Equal(t, verbs.Usage{Handles: 2, Objects: 14}, pool.Usage())
	require.Equal(t, 7, first.Objects())

	require.ErrorIs(t, closes[len(closes)-1](), verbs.ErrBusy)
	require.Equal(t, 7, first.Objects(), "a PD that is in use stays")
	for _, end := range closes {
		require.NoError(t, end())
		left := first.Objects()
		require.NoError(t, end(), "it is closed already")
		require.Equal(t, left, first.Objects())
	}
	require.Zero(t, first.Objects())
	require.NoError(t, second.Close(), "with its objects")
	require.Equal(t, verbs.Usage{Handles: 1}, pool.Usage())
	require.NoError(t, first.Close())
	require.NoError(t, first.Close())
	_, err = first.AllocPD()
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.Zero(t, pool.Usage())
}

func TestTheErrorOfAFullPoolNamesTheLimit(t *testing.T) {
	var pool verbs.Pool
	require.Zero(t, pool.SetLimit(verbs.Usage{Handles: 1, Objects: 2}))
	c, err := pool.Open("soft0")
	require.NoError(t, err)
	_, err = pool.Open("soft0")
	require.EqualError(t, err, "verbs: open on soft0: limit of the pool reached: hca_handle, 1 of 1 in use "+
		"(raise it with Pool.SetLimit or SetDeviceLimit, or close what is not used)")
	pd, err := c.AllocPD()
	require.NoError(t, err)
	_, err = c.CreateCQ(verbs.CQAttr{CQE: 1, Vector: 100}, nil)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.Equal(t, 1, c.Objects(), "what failed does not count")
	mr, err := pd.AllocMR(4096, 0, verbs.MROptions{})
	require.NoError(t, err)
	pinned := verbs.PinnedBytes()
	_, err = pd.AllocMR(4096, 0, verbs.MROptions{})
	require.ErrorIs(t, err, verbs.ErrPoolLimit)
	require.ErrorContains(t, err, "hca_object, 2 of 2 in use")
	require.Equal(t, pinned, verbs.PinnedBytes())
	require.NoError(t, mr.Close())
	_, err = c.CreateCQ(verbs.CQAttr{CQE: 1}, nil)
	require.NoError(t, err)
	require.Equal(t, verbs.Usage{Handles: 1, Objects: 2}, pool.SetLimit(verbs.Usage{}))
	_, err = c.CreateCQ(verbs.CQAttr{CQE: 1}, nil)
	require.NoError(t, err)
	_, err = pool.Open("nothing")
	require.ErrorIs(t, err, verbs.ErrNoDevice)
	require.NoError(t, c.Close())
	require.Zero(t, pool.Usage())
}

func TestAContextMayBeClosedWhileItsObjectsAre(t *testing.T) {
	var pool verbs.Pool
	for range 50 {
		c, err := pool.Open("soft0")
		require.NoError(t, err)
		var users sync.WaitGroup
		for range 4 {
			users.Go(func() {
				for range 10 {
					if pd, err := c.AllocPD(); err == nil {
						_ = pd.Close() // it may have gone with the context
					}
				}
			})
		}
		require.NoError(t, c.Close())
		users.Wait() // ends after ten PDs each
		require.Zero(t, pool.Usage())
	}
}
