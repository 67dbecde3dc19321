package verbstest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/race"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

// rule is an entry of the kernel's qp_state_table (drivers/infiniband/core/verbs.c), in
// literal numbers: the attributes that a transition requires and allows.
type rule struct{ required, optional verbs.QPAttrMask }

const (
	reset = verbs.QPStateReset
	ini   = verbs.QPStateInit
	rtr   = verbs.QPStateRTR
	rts   = verbs.QPStateRTS
	sqd   = verbs.QPStateSQD
	sqe   = verbs.QPStateSQE
	errs  = verbs.QPStateErr
)

// rules is that table, without the ways to RESET and ERR, which need nothing and allow
// nothing.
var rules = map[verbs.QPType]map[[2]verbs.QPState]rule{
	verbs.QPTypeRC: {
		{reset, ini}: {0x000038, 0},
		{ini, ini}:   {0, 0x000038},
		{ini, rtr}:   {0x129180, 0x004018},
		{rtr, rts}:   {0x012e00, 0x04c00a},
		{rts, rts}:   {0, 0x04c00a},
		{rts, sqd}:   {0, 0x000004},
		{sqd, rts}:   {0, 0x04c00a},
		{sqd, sqd}:   {0, 0x06eeb8},
		{sqe, rts}:   {0, 0},
	},
	verbs.QPTypeUC: {
		{reset, ini}: {0x000038, 0},
		{ini, ini}:   {0, 0x000038},
		{ini, rtr}:   {0x101180, 0x004018},
		{rtr, rts}:   {0x010000, 0x04400a},
		{rts, rts}:   {0, 0x04400a},
		{rts, sqd}:   {0, 0x000004},
		{sqd, rts}:   {0, 0x04400a},
		{sqd, sqd}:   {0, 0x044098},
		{sqe, rts}:   {0, 0x00000a},
	},
	verbs.QPTypeUD: {
		{reset, ini}: {0x000070, 0},
		{ini, ini}:   {0, 0x000070},
		{ini, rtr}:   {0, 0x000050},
		{rtr, rts}:   {0x010000, 0x000042},
		{rts, rts}:   {0, 0x000042},
		{rts, sqd}:   {0, 0x000004},
		{sqd, rts}:   {0, 0x000042},
		{sqd, sqd}:   {0, 0x000050},
		{sqe, rts}:   {0, 0x000042},
	},
	verbs.QPTypeXRCInitiator: {
		{reset, ini}: {0x000038, 0},
		{ini, ini}:   {0, 0x000038},
		{ini, rtr}:   {0x101180, 0x004018},
		{rtr, rts}:   {0x012e00, 0x04400a},
		{rts, rts}:   {0, 0x04400a},
		{rts, sqd}:   {0, 0x000004},
		{sqd, rts}:   {0, 0x04400a},
		{sqd, sqd}:   {0, 0x046eb8},
		{sqe, rts}:   {0, 0},
	},
	verbs.QPTypeXRCTarget: {
		{reset, ini}: {0x000038, 0},
		{ini, ini}:   {0, 0x000038},
		{ini, rtr}:   {0x129180, 0x004018},
		{rtr, rts}:   {0x010200, 0x04c00a},
		{rts, rts}:   {0, 0x04c00a},
		{rts, sqd}:   {0, 0x000004},
		{sqd, rts}:   {0, 0x04c00a},
		{sqd, sqd}:   {0, 0x06c2b8},
		{sqe, rts}:   {0, 0},
	},
}

// ignored are the attributes that the kernel does not look at (core/uverbs_cmd.c, modify_qp_mask).
var ignored = map[verbs.QPType]verbs.QPAttrMask{
	verbs.QPTypeXRCInitiator: 0x028000,
	verbs.QPTypeXRCTarget:    0x002c00,
}

// A Rule says with which attributes the kernel lets a QP make a transition: its ib_modify_qp_is_ok.
type Rule struct {
	rule
	ignored        verbs.QPAttrMask
	valid, current bool // there is such a transition; it takes CurState
}

// Rule is that of a transition, whatever its mask.
func (tr Transition) Rule() Rule {
	r, valid := rules[tr.Type][[2]verbs.QPState{tr.From, tr.To}]
	if tr.To == reset || tr.To == errs && tr.From != reset {
		r, valid = rule{}, true
	}
	return Rule{r, ignored[tr.Type], valid, tr.From == rtr || tr.From == rts || tr.From == sqd || tr.From == sqe}
}

// Exists reports whether there is such a transition.
func (r *Rule) Exists() bool { return r.valid }

// Allows reports whether the attributes in mask are those of the rule.
func (r *Rule) Allows(mask verbs.QPAttrMask) bool {
	mask &^= r.ignored
	return r.valid && (r.current || mask&verbs.QPAttrCurState == 0) && mask&r.required == r.required &&
		mask&^(r.required|r.optional|verbs.QPAttrState) == 0
}

// masks are those that are tried for a transition: every set of the attributes that it requires
// or allows; the required ones alone, and all of these, with each other bit on top; all bits.
func masks(r rule) []verbs.QPAttrMask {
	all := r.required | r.optional
	list := []verbs.QPAttrMask{0, 1<<21 - 1}
	for set := all; set != 0; set = (set - 1) & all {
		list = append(list, set)
	}
	for bit := range 23 { // two more than there are
		b := verbs.QPAttrMask(1) << bit
		list = append(list, r.required|b, all|b)
	}
	for i := range list {
		list[i] |= verbs.QPAttrState
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// A Transition is a change of a QP's state with certain attributes.
type Transition struct {
	Type     verbs.QPType
	From, To verbs.QPState
	Mask     verbs.QPAttrMask
}

func (tr Transition) String() string {
	return fmt.Sprintf("type %d, %v to %v, mask %#x", tr.Type, tr.From, tr.To, uint32(tr.Mask))
}

// testTransitions tries every transition with many masks. Of a device of the kernel it asks
// what the kernel decides, past package verbs, and of the software HCA what that package
// decides, to which it leaves that. It must be what the specification says. The race detector,
// under which it takes a third of the time of all tests, sees a few of the masks: one goroutine
// asks for them one after the other.
func testTransitions(t *testing.T, s *suite) {
	step := 1
	if race.Enabled {
		step = 11 // a prime: all bits come and go
	}
	for _, service := range []struct {
		name string
		typ  verbs.QPType
	}{
		{"RC", verbs.QPTypeRC}, {"UC", verbs.QPTypeUC}, {"UD", verbs.QPTypeUD},
		{"XRC initiator", verbs.QPTypeXRCInitiator}, {"XRC target", verbs.QPTypeXRCTarget},
	} {
		t.Run(service.name, func(t *testing.T) {
			w := newWalker(t, s, service.typ)
			for from := reset; from <= errs; from++ {
				for to := reset; to <= errs+1; to++ {
					for i, mask := range masks(rules[service.typ][[2]verbs.QPState{from, to}]) {
						if i%step == 0 {
							w.try(Transition{service.typ, from, to, mask})
						}
					}
				}
			}
			w.tryRandom(t)
			require.Greater(t, w.accepted, 30, "nothing was tried")
			if w.noSQE {
				t.Log("this device takes such a QP to another state than SQE when a request fails")
			}
			require.Empty(t, strings.Join(w.wrong, "\n"))
		})
	}
}

// seedVar chooses other random masks.
const seedVar = "RAMJET_SEED"

// tryRandom tries random masks for random transitions: half of them are those of the table
// with a few bits changed.
func (w *walker) tryRandom(t *testing.T) {
	seed := uint64(1)
	if text := os.Getenv(seedVar); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, seedVar)
	}
	random := rand.New(rand.NewPCG(seed, uint64(w.typ)))
	t.Logf("%s=%d", seedVar, seed)
	var ways [][2]verbs.QPState
	for from := reset; from <= errs; from++ {
		for to := reset; to <= errs; to++ {
			ways = append(ways, [2]verbs.QPState{from, to})
		}
	}
	for _, way := range ways {
		for range 4 {
			mask := verbs.QPAttrMask(random.Uint32N(1 << 21))
			if r, ok := rules[w.typ][way]; ok && random.IntN(4) > 0 {
				mask = r.required | mask&r.optional
				for range random.IntN(3) {
					mask ^= 1 << random.IntN(21)
				}
			}
			w.try(Transition{w.typ, way[0], way[1], mask | verbs.QPAttrState})
		}
	}
}

// walker takes a QP from state to state.
type walker struct {
	*side
	peer     *side // where its way leads
	typ      verbs.QPType
	state    verbs.QPState // of the QP
	accepted int
	noSQE    bool // the device does not know that state
	wrong    []string
}

func newWalker(t *testing.T, s *suite, typ verbs.QPType) *walker {
	if typ == verbs.QPTypeXRCInitiator || typ == verbs.QPTypeXRCTarget {
		initiator, target, _ := s.domains(t, nil)
		for _, end := range []*side{initiator, target} {
			require.NoError(t, end.qp.Modify(verbs.QPAttr{State: reset}, verbs.QPAttrState))
		}
		if typ == verbs.QPTypeXRCTarget {
			return &walker{side: target, peer: initiator, typ: typ}
		}
		return &walker{side: initiator, peer: target, typ: typ}
	}
	conf := usual
	conf.memory = 4096
	a, b := s.sides(t, conf)
	if a.pair.Connect != nil {
		t.Skip("QPs of this device have other states")
	}
	if typ != verbs.QPTypeRC {
		for _, end := range []*side{a, b} {
			end.other(typ)
			require.NoError(t, end.qp.Modify(verbs.QPAttr{State: reset}, verbs.QPAttrState))
		}
	}
	return &walker{side: a, peer: b, typ: typ}
}

// attr has a good value for each attribute of a QP that is connected to another one.
func goodAttr(s, peer *side, from, to verbs.QPState) verbs.QPAttr {
	way := s.vectorTo(peer)
	return verbs.QPAttr{
		State: to, CurState: from, Access: s.rights(), Port: 1, QKey: datagramQKey, AV: way, AltAV: way, AltPort: 1,
		AltTimeout: 14, PathMTU: verbs.MTU1024, Timeout: 14, RetryCount: 7, RNRRetry: 7, RQPSN: 9, SQPSN: 9,
		MaxRdAtomic: 1, MaxDestRdAtomic: 1, MinRNRTimer: 12, DestQPN: peer.qp.Num(),
	}
}

// try makes a transition, from where it begins.
func (w *walker) try(tr Transition) {
	table := tr.Rule()
	want := table.Allows(tr.Mask) && !w.kernelRefuses(tr)
	if !w.goTo(tr.From) {
		return
	}
	attr := goodAttr(w.side, w.peer, tr.From, tr.To)
	if w.ctx.Attr().Transport == verbs.TransportSoft {
		w.judge(tr, want, w.qp.Modify(attr, tr.Mask))
	} else {
		w.judge(tr, want, w.qp.Driver().Modify(&attr, tr.Mask))
	}
}

// kernelRefuses reports whether the kernel refuses on all devices what is allowed.
func (w *walker) kernelRefuses(tr Transition) bool {
	switch {
	case w.ctx.Attr().Transport == verbs.TransportSoft:
		return false
	case tr.Mask&verbs.QPAttrAltPath != 0 && w.ctx.Attr().Transport == verbs.TransportRoCE:
		return true // alternate paths are for InfiniBand (core/verbs.c, _ib_modify_qp)
	case tr.Type == verbs.QPTypeUC && tr.From == sqd && tr.To == sqd:
		// Who changes the address vector in SQD changes the port as well
		// (core/uverbs_cmd.c, modify_qp), which a UC QP may not.
		return tr.Mask&verbs.QPAttrAV != 0
	}
	return false
}

// judge compares what was decided, and where the QP is, with what should be.
func (w *walker) judge(tr Transition, want bool, err error) {
	if want != (err == nil) {
		w.wrong = append(w.wrong, fmt.Sprintf("%v: allowed is %v, the answer is %v", tr, want, err))
	}
	state := tr.From
	if err == nil {
		state = tr.To
		w.accepted++
	}
	if w.state = w.settled(); w.state != state {
		w.wrong = append(w.wrong, fmt.Sprintf("%v: the answer is %v, and the QP in %v", tr, err, w.state))
	}
}

// goTo brings the QP to a state, and reports whether there is a way.
func (w *walker) goTo(state verbs.QPState) bool {
	if w.state == state {
		return true
	}
	w.step(reset)
	switch state {
	case errs:
		w.step(ini, errs)
	case ini, rtr, rts:
		for next := ini; next <= state; next++ {
			w.step(next)
		}
	case sqd:
		w.step(ini, rtr, rts, sqd)
	case sqe:
		return (w.typ == verbs.QPTypeUC || w.typ == verbs.QPTypeUD) && w.fail()
	}
	return true
}

// fail makes a request fail at the QP itself, which takes the QP to SQE (InfiniBand
// Architecture Specification 10.3.1), and reports whether the device does that.
func (w *walker) fail() bool {
	if w.noSQE {
		return false
	}
	w.step(ini, rtr, rts)
	if w.typ == verbs.QPTypeUC { // what it posts may wait for a peer
		b := w.peer
		for to := reset; to <= rtr; to++ {
			mask := verbs.QPAttrState
			if to != reset {
				mask |= rules[w.typ][[2]verbs.QPState{to - 1, to}].required
			}
			require.NoError(w.t, b.qp.Modify(goodAttr(b, w.side, to-1, to), mask))
		}
	}
	wr := verbs.SendWR{ID: 1, Opcode: verbs.OpSend, SGL: []verbs.SGE{{Addr: w.mr.Addr(), Length: 8, LKey: w.mr.LKey() ^ 0x100}}}
	if w.typ == verbs.QPTypeUD {
		ah, err := w.pd.CreateAH(w.vectorTo(w.peer))
		require.NoError(w.t, err)
		defer ah.Close()
		wr.Datagram = &verbs.Datagram{AH: ah, QPN: w.peer.qp.Num(), QKey: datagramQKey}
	}
	w.post(wr)
	require.Error(w.t, w.poll(w.send, 1)[0].Err())
	w.state = w.leaves(rts)
	if w.noSQE = w.state != sqe; w.noSQE {
		w.goesToErr()
	}
	return !w.noSQE
}

func (w *walker) step(states ...verbs.QPState) {
	for _, to := range states {
		r := rules[w.typ][[2]verbs.QPState{w.state, to}]
		require.NoError(w.t, w.qp.Modify(goodAttr(w.side, w.peer, w.state, to), r.required|verbs.QPAttrState), "from %v to %v", w.state, to)
		w.state = w.settled()
	}
}

// settled returns the state of the QP, once it is drained in SQD: rxe of Linux 6.12 lets it
// go nowhere but to ERR before that.
func (w *walker) settled() verbs.QPState {
	for deadline := time.Now().Add(patience); ; {
		attr, err := w.qp.Query()
		require.NoError(w.t, err)
		if !attr.SQDraining {
			return attr.State
		}
		require.True(w.t, time.Now().Before(deadline), "the QP is not drained")
		time.Sleep(100 * time.Microsecond)
	}
}
