package kerneltest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/internal/testhost"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/seed-b9b531af/ramjet/rnet/internal/traffic"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"
)

// wireDialer and wireListen use one device and nothing else.
func wireDialer(device string) *rnet.Dialer {
	return &rnet.Dialer{Transport: rnet.RDMA, Device: device}
}

func wireListen(device string) (net.Listener, error) {
	lc := &rnet.ListenConfig{Transport: rnet.RDMA, Device: device}
	return lc.Listen(context.Background(), "tcp", net.JoinHostPort(testhost.Address(), "0"))
}

// listenOnWire is wireListen on this machine: it serves each connection as
// its first byte says.
func (k device) listenOnWire(t testing.TB) (address string) {
	t.Helper()
	ln, err := wireListen(k.name)
	require.NoError(t, err)
	t.Cleanup(func() { ln.Close() })
	go traffic.Serve(ln)
	return ln.Addr().String()
}

func init() {
	roles.Add("wireserve", serveWire)
	roles.Add("wiredial", dialWire)
	roles.Add("relay", relay)
}

// relay accepts connections on a device and passes each on to an address.
func relay(args []string) error {
	ln, err := listenAs(args[0])
	if err != nil {
		return err
	}
	k, _ := deviceNamed(args[0])
	return traffic.Relay(ln, func() (net.Conn, error) { return k.dialer().Dial("tcp", args[1]) })
}

// serveWire listens on a device, says where, and does with each connection
// what its first byte says.
func serveWire(args []string) error {
	ln, err := wireListen(args[0])
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	return traffic.Serve(ln)
}

// dialWire carries exchanges over a device to an address, so many at once of
// so many bytes, and says how it went.
func dialWire(args []string) error {
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	size, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	fmt.Println(exchangesThrough(wireDialer(args[0]), args[1], n, size))
	return nil
}

// wireReport says how exchanges went.
type wireReport struct {
	done, lost, undialed int
	took                 time.Duration
	cause                error   // of the last loss
	errs                 []error // what must not be
}

// reportFormat is how a report is told; a process on the peer's machine can
// tell it in no other way.
const reportFormat = "%d exchanges in %s %d lost with their session, %d dials failed"

func (r wireReport) String() string {
	if len(r.errs) > 0 {
		return fmt.Sprintf("failed: %q", errors.Join(r.errs...).Error())
	}
	said := fmt.Sprintf(reportFormat, r.done, r.took.Round(time.Millisecond).String()+",", r.lost, r.undialed)
	if r.cause != nil {
		said += fmt.Sprintf(", the last one by %q", r.cause.Error())
	}
	return said
}

// exchangesThrough carries n exchanges of size bytes each way at once. One
// whose session is lost is begun anew.
func exchangesThrough(d *rnet.Dialer, address string, n, size int) wireReport {
	begun := time.Now()
	end := begun.Add(wirePatience - 20*time.Second)
	results := make(chan wireReport)
	for i := range n {
		go func() {
			var r wireReport
			for r.done == 0 && r.errs == nil {
				r.try(d, address, uint64(i)*2, size)
				if r.done == 0 && time.Now().After(end) {
					r.errs = append(r.errs, fmt.Errorf("exchange %d has not come through: %d lost, %d dials failed", i, r.lost, r.undialed))
				}
			}
			results <- r
		}()
	}
	var all wireReport
	for range n {
		r := <-results // ended by the data, or the loop's end
		all.done, all.lost, all.undialed = all.done+r.done, all.lost+r.lost, all.undialed+r.undialed
		all.errs = append(all.errs, r.errs...)
		if r.cause != nil {
			all.cause = r.cause
		}
	}
	all.took = time.Since(begun)
	return all
}

// try carries one exchange, and notes what came of it. All that a bad wire
// may do is end a session, which is ECONNRESET, or keep one from being made.
func (r *wireReport) try(d *rnet.Dialer, address string, seed uint64, size int) {
	c, err := d.Dial("tcp", address)
	if err != nil {
		var timeout net.Error
		if errors.Is(err, syscall.ECONNRESET) || errors.As(err, &timeout) && timeout.Timeout() {
			r.undialed++
			r.cause = err
			return
		}
		r.errs = append(r.errs, fmt.Errorf("dial: %w", err))
		return
	}
	defer c.Close()
	if _, err = c.Write([]byte{traffic.Exchanging}); err == nil {
		err = traffic.Exchange(c, seed, size)
	}
	switch {
	case err == nil:
		r.done++
	case errors.Is(err, syscall.ECONNRESET):
		r.lost++
		r.cause = err
	default:
		r.errs = append(r.errs, fmt.Errorf("exchange %d: %w", seed/2, err))
	}
}

// requireExchange requires a dial and an exchange over the wire to succeed at
// once: it is in order.
func (k device) requireExchange(t testing.TB, address string) {
	t.Helper()
	c := dialMode(t, wireDialer(k.name), address, traffic.Exchanging)
	require.Equal(t, "rdma "+k.name, carriedBy(c))
	require.NoError(t, traffic.Exchange(c, 1, 20<<10))
	require.NoError(t, c.Close())
}

// TestWireConnPassesNettest is rnet's TestConnPassesNettestBetweenProcesses, with the relay on the
// peer's machine.
func TestWireConnPassesNettest(t *testing.T) {
	overWire(t, func(t *testing.T, k device) {
		ln := k.listen(t)
		relay := startOnPeer(t, "relay", k.name, ln.Addr().String()).line(t)
		nettest.TestConn(t, traffic.PipesThrough(func() (net.Conn, error) { return k.dialer().Dial("tcp", relay) }, ln))
	})
}

var wireConditions = []struct {
	name  string
	netem []string // nil: as it is
	size  int      // bytes each way of one exchange
	// mayLose is how many exchanges each side may lose with their session, or
	// dial for in vain.
	mayLose int
}{
	{"in order", nil, 1 << 20, 0},
	{"one percent lost", []string{"loss", "1%"}, 512 << 10, 0},
	{"ten percent lost", []string{"loss", "10%"}, 64 << 10, 2 * wireStreams},
	{"late and out of order", []string{"delay", "5ms", "reorder", "25%"}, 128 << 10, 0},
}

const wireStreams = 8 // in each direction

// Whatever the wire does to packets, what arrives is right. As long as it loses
// few, all arrives at the first try; what does not ends in ECONNRESET.
func TestWireCarriesDataBothWays(t *testing.T) {
	overWire(t, func(t *testing.T, k device) {
		server := startOnPeer(t, "wireserve", k.name)
		theirs, ours := server.line(t), k.listenOnWire(t)
		for _, condition := range wireConditions {
			t.Run(condition.name, func(t *testing.T) {
				mend := func() {}
				if condition.netem != nil {
					mend = shapeWire(t, condition.netem...)
				}
				caller := startOnPeer(t, "wiredial", k.name, ours, strconv.Itoa(wireStreams), strconv.Itoa(condition.size))
				report := exchangesThrough(wireDialer(k.name), theirs, wireStreams, condition.size)
				said := caller.line(t)
				t.Logf("to the peer: %v; from the peer: %s", report, said)
				assert.Empty(t, report.errs)
				assert.LessOrEqual(t, report.lost+report.undialed, condition.mayLose)
				var done, lost, undialed int
				var took string
				_, err := fmt.Sscanf(said, reportFormat, &done, &took, &lost, &undialed)
				assert.NoError(t, err, said)
				assert.Equal(t, wireStreams, done)
				assert.LessOrEqual(t, lost+undialed, condition.mayLose)
				mend()
				k.requireExchange(t, theirs)
			})
		}
	})
}
