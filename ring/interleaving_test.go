package ring

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Every order of the steps of two ends is explored, for loads that are small enough, and
// large enough to go round the ring and the slots; model_test.go has the model. The depth
// is the number of data messages.

var (
	alwaysReading = [2][modelStreams]reader{{atOnce, atOnce}, {atOnce, atOnce}}
	neverReading  = [2][modelStreams]reader{{never, never}, {never, never}}
)

// small is a connection that is full after a few messages.
var small = protocol{ring: 128, depth: 8, aside: 4, window: 64, sizes: []int{32}}

// full is a connection whose ends write until the windows are full, and which posts
// receives again in batches, as package rnet does.
var full = protocol{
	ring: 512, depth: 32, aside: 16, repost: 8, window: 1024, sizes: []int{16},
	frames: [2][2]int{{70}, {70}}, readers: neverReading,
}

// with returns p changed by edit.
func (p protocol) with(edit func(p *protocol)) *protocol {
	edit(&p)
	return &p
}

func TestNoInterleavingBreaksTheProtocol(t *testing.T) {
	for _, test := range []struct {
		name string
		p    *protocol
	}{
		{name: "one sender", p: small.with(func(p *protocol) {
			p.frames = [2][2]int{{10}, {}}
			p.readers = alwaysReading
		})},
		{name: "one sender, the reader comes and goes", p: small.with(func(p *protocol) {
			p.frames = [2][2]int{{12}, {}}
		})},
		{name: "one sender that writes now and then", p: small.with(func(p *protocol) {
			p.frames = [2][2]int{{5}, {}}
			p.lazy = true
			p.readers = alwaysReading
		})},
		{name: "both send", p: small.with(func(p *protocol) {
			p.frames = [2][2]int{{5}, {5}}
			p.readers = alwaysReading
		})},
		{name: "both send now and then", p: small.with(func(p *protocol) {
			p.frames = [2][2]int{{3}, {2}}
			p.lazy = true
			p.readers = alwaysReading
		})},
		{name: "lengths that skip the end of the ring", p: small.with(func(p *protocol) {
			p.frames = [2][2]int{{14}, {}}
			p.ring, p.sizes = 256, []int{16, 48}
			p.readers = alwaysReading
		})},
		{name: "a stream that nobody reads beside one that is read", p: small.with(func(p *protocol) {
			p.frames = [2][2]int{{6, 3}, {}}
			p.readers = [2][2]reader{{}, {atOnce, never}}
		})},
		{name: "two streams read in any order", p: small.with(func(p *protocol) {
			p.frames = [2][2]int{{4, 2}, {}}
		})},
		{name: "both send on two streams", p: small.with(func(p *protocol) {
			p.frames = [2][2]int{{2, 1}, {1, 1}}
		})},
		{name: "both send and the readers come and go", p: small.with(func(p *protocol) {
			p.frames = [2][2]int{{3}, {3}}
		})},
		{name: "credit updates get lost", p: small.with(func(p *protocol) {
			p.frames = [2][2]int{{4}, {}}
			p.readers = alwaysReading
			p.losses = 1
		})},
		{name: "many credit updates get lost", p: small.with(func(p *protocol) {
			p.frames = [2][2]int{{8}, {}}
			p.readers = alwaysReading
			p.losses = 3
		})},
		{name: "credit updates get lost both ways", p: small.with(func(p *protocol) {
			p.frames = [2][2]int{{6}, {6}}
			p.readers = alwaysReading
			p.losses = 2
		})},
		{name: "both only write", p: full.with(func(p *protocol) {})},
		{name: "both only write, a large ring", p: full.with(func(p *protocol) {
			p.ring = 1024
		})},
		{name: "both only write, long messages", p: full.with(func(p *protocol) {
			p.sizes = []int{64}
		})},
		{name: "both only write, messages that skip the end", p: full.with(func(p *protocol) {
			p.sizes = []int{48}
		})},
		{name: "both write, one reads", p: full.with(func(p *protocol) {
			p.frames = [2][2]int{{40}, {40}}
			p.readers[0] = [2]reader{atOnce, atOnce}
		})},
		{name: "both write and read", p: full.with(func(p *protocol) {
			p.ring, p.depth, p.repost = 256, 16, 4
			p.frames = [2][2]int{{24}, {24}}
			p.readers = alwaysReading
		})},
		{name: "receives in batches", p: small.with(func(p *protocol) {
			p.aside, p.repost = 16, 2
			p.frames = [2][2]int{{4}, {4}}
			p.readers = alwaysReading
		})},
		{name: "receives in batches, the reader comes and goes", p: small.with(func(p *protocol) {
			p.aside, p.repost = 16, 2
			p.frames = [2][2]int{{4}, {}}
		})},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := explore(t, newWorld(test.p))
			require.Nil(t, v, "%v", v)
		})
	}
}

// What the exploration shows counts for nothing unless it finds the mistakes
// that it is there for.
func TestEachMistakeIsFound(t *testing.T) {
	oneSender := small.with(func(p *protocol) {
		p.frames = [2][2]int{{4}, {}}
		p.readers = alwaysReading
	})
	credits := oneSender.with(func(p *protocol) { p.frames = [2][2]int{{8}, {}} })

	for _, test := range []struct {
		mistake string
		p       *protocol
		want    error
	}{
		{"releasing as many bytes as were freed, wherever they lie", credits.with(func(p *protocol) {
			p.readers = [2][2]reader{}
			p.frames = [2][2]int{{4, 4}, {}}
			p.countedRelease = true
		}), errOverwritten},
		{"credit as a difference, when an update gets lost", credits.with(func(p *protocol) {
			p.frames = [2][2]int{{12}, {}}
			p.relativeCredits = true
			p.losses = 4
		}), errDeadlock},
		{"leaving retained messages in the way", full.with(func(p *protocol) { p.noSpill = true }), errDeadlock},
		{"too few receives for credit messages", full.with(func(p *protocol) { p.aside = 2 }), errNoReceive},
		{"posting receives again too late", full.with(func(p *protocol) {
			p.ring, p.repost = 1024, p.depth+1
			p.frames = [2][2]int{{40}, {}}
			p.readers = alwaysReading
		}), errDeadlock},
		{"a message longer than can find room", full.with(func(p *protocol) { p.ring, p.sizes, p.wholeMessages = 512, []int{240}, true }), errDeadlock},
	} {
		t.Run(test.mistake, func(t *testing.T) {
			v := explore(t, newWorld(test.p))
			require.NotNil(t, v)
			require.ErrorIs(t, v.rule, test.want, "%v", v)
			t.Log(v.rule)
		})
	}
}
