package soft

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/protocol"
	"github.com/seed-b9b531af/ramjet/verbs/soft/internal/sys"
	"golang.org/x/sys/unix"
)

// channel is a completion channel. It has a pair of Unix sockets, the wake
// sockets: one is ours, on the netpoller, and the peer has a descriptor of the other
// and sends a byte when it finds a CQ of ours armed; ours of that is closed once the peer
// has it. No call on either can be made to block by the other side: see sys.SendWake.
//
// With one QP, as rnet has it, the byte is hardly ever read: each is an edge to
// the netpoller, and that it was for an arrival is told by the arm word, from which
// the peer has taken ArmArmed before. A QP beyond the first has a pair of its own,
// so that a peer can spoil no wake-up but its own, and a goroutine that passes it on.
//
// Whoever waits in WaitThread and serves one QP only sleeps in a futex on the
// arm word of that QP instead, which costs less on both sides. The bit
// ArmFutex in the word tells the peer. Events of our own always go through
// signal, which ends either kind of sleep, and the two kinds take nothing from
// each other.
type channel struct {
	dev *device

	file *os.File // our wake-up socket, on the netpoller
	raw  syscall.RawConn
	read func(fd uintptr) bool // made once, so that Wait does not allocate

	// Of the one who waits.
	deadline time.Time // what the netpoller was told last
	armings  uint32    // of the QP when the wake-up socket was read
	pfds     [2]unix.PollFd
	timeout  unix.Timespec
	hungUp   bool // nothing comes to the wake-up socket any more

	moderated   atomic.Bool // a CQ is or was, so that events may have to be held back
	interrupted atomic.Bool // Wake was called, and no holdBack has seen it

	spoiled  atomic.Bool             // the wake-up socket is not to be read any more
	signaled atomic.Bool             // signal was called, and no Wait has seen it
	single   atomic.Pointer[inbound] // the only QP, nil if there are none or several

	mu       sync.Mutex
	far      int                           // guarded by mu: the peer's wake-up socket, -1 once the peer has it
	stop     int                           // guarded by mu: eventfd that ends poll(2), -1 until somebody polls
	of       *inbound                      // guarded by mu: the QP whose peer was given far
	others   map[*inbound]*extraWakeSocket // guarded by mu
	waiters  int                           // guarded by mu: WaitThread calls
	polling  int                           // guarded by mu: of these, in poll(2)
	inbounds *inbound                      // guarded by mu: all QPs, each leads to the next
	sleeper  *inbound                      // guarded by mu: on whose word WaitThread sleeps
	spent    bool                          // guarded by mu: the QP of has gone, and its peer may still have far
	woken    bool                          // guarded by mu: signal was called and no WaitThread has seen it
	closed   bool                          // guarded by mu
}

// extraWakeSocket is the pair of wake-up sockets of a QP that is not the channel's first.
type extraWakeSocket struct {
	file *os.File // our end
	far  int      // the peer's, -1 once it has it
}

func (d *device) CreateCompChannel() (verbs.CompChannelDriver, error) {
	near, far, err := d.newWakeSocket()
	if err != nil {
		return nil, err
	}
	ch := &channel{
		dev: d, far: far, stop: -1, file: os.NewFile(uintptr(near), "completion channel"),
	}
	ch.read = ch.hasEvent
	if ch.raw, err = ch.file.SyscallConn(); err != nil {
		sys.CloseFDs(far)
		ch.file.Close()
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.channels == nil {
		sys.CloseFDs(far)
		ch.file.Close()
		return nil, verbs.ErrClosed
	}
	d.channels[ch] = struct{}{}
	return ch, nil
}

// wakesKept is after how many armings the wake-up socket is read. What it holds until then
// is far from what a socket can. Each byte is a buffer of the kernel's, so that a read of 64
// takes as long as a round trip, and would be the slowest of a hundred waits.
const wakesKept = 16

// hasEvent reports whether there is one. Wait calls it once before it parks, and
// after each edge.
func (ch *channel) hasEvent(fd uintptr) bool {
	if ch.signaled.Load() {
		return true // Wait takes it
	}
	in := ch.single.Load()
	if in == nil {
		return ch.drainWakes(fd)
	}
	if n := in.armings.Load(); n-ch.armings >= wakesKept {
		ch.armings = n
		ch.drainWakes(fd)
	}
	return in.hasEvent()
}

// drainWakes reports whether the wake-up socket has held something. From a peer that
// spoils it nothing more is heard.
func (ch *channel) drainWakes(fd uintptr) bool {
	if ch.spoiled.Load() {
		return false
	}
	some, spoiled := sys.DrainWakes(int(fd))
	if spoiled {
		ch.spoiled.Store(true)
	}
	return some
}

// Wait parks the goroutine on the netpoller.
func (ch *channel) Wait(deadline time.Time) error {
	err := ch.park(deadline)
	if err == nil && ch.moderated.Load() {
		return ch.holdBack(deadline, (*channel).park)
	}
	return err
}

func (ch *channel) park(deadline time.Time) error {
	for {
		if deadline != ch.deadline {
			if err := ch.file.SetReadDeadline(deadline); err != nil {
				return verbs.ErrClosed
			}
			ch.deadline = deadline
		}
		if ch.signaled.Swap(false) {
			return nil
		}
		// Ends with a byte of the peer's, signal (which moves the deadline into the
		// past), the deadline, or Close.
		err := ch.raw.Read(ch.read)
		switch {
		case err == nil:
			ch.signaled.Store(false)
			return nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			// A closed descriptor, for which os.File and its raw connection have
			// different errors.
			return verbs.ErrClosed
		}
		ch.deadline = past
		if ch.signaled.Swap(false) {
			return nil
		}
		if !deadline.IsZero() && !time.Now().Before(deadline) {
			return err
		}
	}
}

// past is no deadline that a caller has.
var past = time.Unix(1, 0)

// WaitThread blocks the thread.
func (ch *channel) WaitThread(deadline time.Time) error {
	err := ch.block(deadline)
	if err == nil && ch.moderated.Load() {
		return ch.holdBack(deadline, (*channel).block)
	}
	return err
}

func (ch *channel) block(deadline time.Time) error {
	in, word, stop, err := ch.enter()
	if err != nil || in == nil && word != 0 {
		return err
	}
	defer ch.leave(in)
	if in == nil {
		return ch.pollSocket(deadline, stop)
	}
	timeout, ok := ch.timeLeft(deadline)
	if !ok {
		return os.ErrDeadlineExceeded
	}
	if timeout == nil || timeout.Nano() > int64(unwakeable) {
		ch.timeout = unix.NsecToTimespec(int64(unwakeable)) // the caller comes again
		timeout = &ch.timeout
	}
	// Ends when the peer takes ArmArmed away, or signal ArmFutex; with the
	// deadline, and with a signal of the runtime.
	sys.FutexWait(in.armWord(), word, timeout)
	arrived := in.hasEventThread()
	runtime.KeepAlive(in)
	if woken, _ := ch.takeWake(); arrived || woken {
		return nil
	}
	return expired(deadline)
}

// unstoppable is for how long a thread polls that nobody can stop, for want of a descriptor.
const unstoppable = time.Millisecond

// unwakeable is for how long a peer can keep a thread in its futex: it can move it to one of its
// own (FUTEX_REQUEUE), or write the word again that signal has changed.
const unwakeable = 500 * time.Millisecond

// pollSocket is WaitThread where no futex will do: with several QPs, or none armed.
// stop is -1 if there is none.
func (ch *channel) pollSocket(deadline time.Time, stop int) error {
	for {
		timeout, ok := ch.timeLeft(deadline)
		if !ok {
			return os.ErrDeadlineExceeded
		}
		if stop < 0 && (deadline.IsZero() || time.Until(deadline) > unstoppable) {
			ch.timeout = unix.NsecToTimespec(int64(unstoppable))
			timeout = &ch.timeout
		}
		arrived := false
		err := ch.raw.Control(func(fd uintptr) { // holds fd, and with it stop, until it returns
			ch.pfds = [2]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}, {Fd: int32(stop), Events: unix.POLLIN}}
			if ch.hungUp {
				ch.pfds[0].Fd = -1 // or it would end each poll
			}
			// Ends with a byte, the peer's hang-up, stop (signal and
			// Close) and the deadline.
			sys.PollReadable(ch.pfds[:], timeout)
			arrived = ch.drainWakes(fd)
			ch.hungUp = ch.hungUp || ch.pfds[0].Revents&(unix.POLLHUP|unix.POLLRDHUP|unix.POLLERR) != 0
			if ch.pfds[1].Revents != 0 {
				sys.TakeStop(stop)
			}
		})
		woken, closed := ch.takeWake()
		if err != nil || closed {
			return verbs.ErrClosed
		}
		if in := ch.single.Load(); in != nil {
			arrived = in.hasEventThread() // what the socket held may be of an event that was given
		}
		if arrived || woken || stop < 0 {
			return nil // without a descriptor early, and the caller comes again
		}
	}
}

func (ch *channel) timeLeft(deadline time.Time) (*unix.Timespec, bool) {
	if deadline.IsZero() {
		return nil, true
	}
	left := time.Until(deadline)
	ch.timeout = unix.NsecToTimespec(int64(left))
	return &ch.timeout, left > 0
}

// expired is the error of a wait that ended without an event.
func expired(deadline time.Time) error {
	if !deadline.IsZero() && !time.Now().Before(deadline) {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// holdBack goes on with a wait that an event has ended, until an event is due: Wake, a CQ
// with as many completions as it waits for, or the end of the first period.
func (ch *channel) holdBack(deadline time.Time, wait func(*channel, time.Time) error) error {
	for {
		if ch.interrupted.Swap(false) {
			return nil
		}
		period, err := ch.collect()
		if err != nil || period == 0 {
			return err
		}
		if end := time.Now().Add(period); deadline.IsZero() || end.Before(deadline) {
			deadline = end
		}
		switch err := wait(ch, deadline); {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil // there are completions, if fewer than was asked for
		case err != nil:
			return err
		}
	}
}

// collect arms the CQs of the channel in which too few completions wait for an event, and
// returns the shortest of their periods: 0 if one has enough, or none has any.
func (ch *channel) collect() (shortest time.Duration, _ error) {
	for _, c := range ch.dev.allCQs() {
		if c.ch != ch || c.lockedWaiting(1) == 0 {
			continue
		}
		count, period := c.moderation.get()
		if period == 0 {
			return 0, nil
		}
		if err := c.armBeside(); err != nil || c.lockedWaiting(count) >= count {
			return 0, err
		}
		if shortest == 0 || period < shortest {
			shortest = period
		}
	}
	return shortest, nil
}

// takeWake reports whether signal was called since the last WaitThread.
func (ch *channel) takeWake() (woken, closed bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	woken = ch.woken
	ch.woken = false
	return woken, ch.closed
}

// enter begins a WaitThread. If the only QP of the channel is armed it says
// in its word that it sleeps in a futex, and returns the QP and the word. A
// word without a QP says that there is an event already; with neither, stop ends
// the poll(2).
func (ch *channel) enter() (in *inbound, word uint32, stop int, err error) {
	const event = 1
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return nil, 0, -1, verbs.ErrClosed
	}
	if ch.woken {
		ch.woken = false
		return nil, event, -1, nil
	}
	if in := ch.single.Load(); in != nil && ch.waiters == 0 {
		if in.hasEventThread() {
			return nil, event, -1, nil
		}
		w := in.seg.Header.Arm.Load()
		if w&protocol.ArmArmed != 0 && in.seg.Header.Arm.CompareAndSwap(w, w|protocol.ArmFutex) {
			ch.waiters++
			ch.sleeper = in
			return in, w | protocol.ArmFutex, -1, nil
		}
		if in.hasEventThread() {
			return nil, event, -1, nil
		}
	}
	ch.waiters++
	ch.polling++
	if ch.stop < 0 {
		ch.stop = sys.NewStop()
	}
	return nil, 0, ch.stop, nil
}

func (ch *channel) leave(in *inbound) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.waiters--
	if in == nil {
		ch.polling--
		return
	}
	ch.endFutexSleep()
}

// wakeSleeper ends the WaitThread that runs. It changes the word, so that one
// who is about to sleep does not.
func (ch *channel) wakeSleeper() {
	if in := ch.endFutexSleep(); in != nil {
		sys.FutexWake(in.armWord())
	}
	if ch.polling > 0 {
		sys.SetStop(ch.stop)
	}
}

// endFutexSleep says in the word that the socket wakes again, and returns the QP on whose word
// somebody sleeps, if so.
func (ch *channel) endFutexSleep() *inbound {
	in := ch.sleeper
	if in == nil {
		return nil
	}
	ch.sleeper = nil
	arm := &in.seg.Header.Arm
	for range casTries {
		w := arm.Load()
		if w&protocol.ArmFutex == 0 || arm.CompareAndSwap(w, w&^protocol.ArmFutex) {
			break
		}
	}
	return in
}

// signal ends the Wait and the WaitThread that run, or else the next.
func (ch *channel) signal() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return
	}
	ch.woken = true
	ch.wakeSleeper()
	if !ch.signaled.Swap(true) {
		_ = ch.file.SetReadDeadline(past) // fails only once the file is closed, which ends Wait too
	}
}

func (ch *channel) Wake() {
	ch.interrupted.Store(true)
	ch.signal()
}

// wakeSocket returns a new descriptor of the socket by which the peer of in wakes us.
func (ch *channel) wakeSocket(in *inbound) (int, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.closed {
		return -1, verbs.ErrClosed
	}
	if !ch.spent && (ch.of == nil || ch.of == in) {
		ch.of = in
		return sys.DupFD(ch.far)
	}
	extra := ch.others[in]
	if extra == nil {
		near, far, err := ch.dev.newWakeSocket()
		if err != nil {
			return -1, err
		}
		extra = &extraWakeSocket{os.NewFile(uintptr(near), "wake-up socket"), far}
		if ch.others == nil { // most channels have one QP
			ch.others = make(map[*inbound]*extraWakeSocket)
		}
		ch.others[in] = extra
		go ch.passOn(extra.file) // ends when the QP is detached, or with the channel
	}
	return sys.DupFD(extra.far)
}

// passOn makes what comes to the wake-up socket of a QP beyond the first one an
// event of the channel.
func (ch *channel) passOn(near *os.File) {
	raw, err := near.SyscallConn()
	if err != nil {
		return
	}
	var some, spoiled bool
	drain := func(fd uintptr) bool {
		some, spoiled = sys.DrainWakes(int(fd))
		return some
	}
	for !spoiled && raw.Read(drain) == nil { // ended by closeExtra
		ch.signal()
	}
}

// peerHas closes our descriptor of what wakeSocket gave: the peer of in has its own.
func (ch *channel) peerHas(in *inbound) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.of == in {
		sys.CloseFDs(ch.far)
		ch.far = -1
	} else if extra := ch.others[in]; extra != nil {
		sys.CloseFDs(extra.far)
		extra.far = -1
	}
}

// closeExtra closes the wake-up sockets of a QP beyond the first. mu is held.
func (ch *channel) closeExtra(in *inbound) {
	if extra := ch.others[in]; extra != nil {
		delete(ch.others, in)
		_ = sys.CloseNear(extra.file)
		sys.CloseFDs(extra.far)
	}
}

func (ch *channel) attach(in *inbound) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	in.nextOfChannel, ch.inbounds = ch.inbounds, in
	ch.setSingle()
	// A second QP cannot wake a futex on the word of the first.
	ch.wakeSleeper()
}

func (ch *channel) detach(in *inbound) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	for at := &ch.inbounds; *at != nil; at = &(*at).nextOfChannel {
		if *at == in {
			*at, in.nextOfChannel = in.nextOfChannel, nil
			break
		}
	}
	if ch.of == in {
		ch.of, ch.spent = nil, true
	}
	ch.setSingle()
	ch.closeExtra(in)
	if ch.sleeper == in {
		ch.wakeSleeper()
	}
}

// setSingle notes whether there is one QP only, whose peer has the channel's own
// wake-up socket. A goroutine that waits for it may have to wait for another now. mu is held.
func (ch *channel) setSingle() {
	ch.single.Store(nil)
	in := ch.inbounds
	if in != nil && in.nextOfChannel == nil && !ch.spent && (ch.of == nil || ch.of == in) {
		ch.single.Store(in)
	}
}

func (ch *channel) Close() error {
	ch.mu.Lock()
	if ch.closed {
		ch.mu.Unlock()
		return verbs.ErrClosed
	}
	ch.wakeSleeper()
	ch.closed = true
	for in := range ch.others {
		ch.closeExtra(in)
	}
	sys.CloseFDs(ch.far)
	ch.far = -1
	ch.mu.Unlock()
	ch.dev.mu.Lock()
	delete(ch.dev.channels, ch)
	ch.dev.mu.Unlock()
	err := sys.CloseNear(ch.file) // ends Wait, and waits for a call of poll(2)
	ch.mu.Lock()
	defer ch.mu.Unlock()
	sys.CloseFDs(ch.stop)
	ch.stop = -1
	return err
}
