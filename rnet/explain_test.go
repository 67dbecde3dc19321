package rnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/rnet/internal/settings"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

func TestEachDialIsLogged(t *testing.T) {
	var printed bytes.Buffer
	ln := carrier{}.listen(t)
	d := Dialer{Logger: slog.New(slog.NewTextHandler(&printed, &slog.HandlerOptions{Level: slog.LevelDebug})), HeadStart: hang.Time}
	for range 3 { // the first one makes the session
		c, err := d.Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		defer c.Close()
	}
	require.Equal(t, 3, strings.Count(printed.String(), "rnet: dial"), printed.String())
}

func TestADecisionIsOfTheTimeAtWhichItWasMade(t *testing.T) {
	address := closedAddress(t)
	begun := time.Now()
	_, err := Dial("tcp", address)
	require.Error(t, err)
	told := Explain(address)
	last := told[len(told)-1]
	require.False(t, last.Time.Before(begun.Add(last.Took)), "%v after %v, took %v", last.Time, begun, last.Took)
}

func TestExplainTellsTheNewestDecisionLast(t *testing.T) {
	const addr = "192.0.2.1:1"
	decided.Record(fallback.Decision{Addr: addr, Transport: fallback.TCP, Reason: fallback.NoListener})
	decided.Record(fallback.Decision{Addr: addr, Transport: fallback.Soft})
	told := Explain(addr)
	require.GreaterOrEqual(t, len(told), 2)
	told = told[len(told)-2:]
	require.Equal(t, "no-listener", told[0].Reason)
	require.Contains(t, told[0].String(), "tcp: no-listener: ")
	require.Contains(t, told[0].String(), told[0].Remedy)
	require.Equal(t, "soft", told[1].String())
}

func TestErrorsBelowGetTheirReasons(t *testing.T) {
	for reason, err := range map[fallback.Reason]error{
		fallback.PinLimit:       fmt.Errorf("alloc MR: %w", verbs.ErrPinLimit),
		fallback.NoDevice:       fmt.Errorf("open: %w", verbs.ErrNoDevice),
		fallback.MemfdForbidden: fmt.Errorf("create QP: %w", os.NewSyscallError("memfd_create", syscall.EPERM)),
		fallback.NoDescriptors:  fmt.Errorf("create QP: %w", os.NewSyscallError("memfd_create", syscall.EMFILE)),
		fallback.NotLocal:       fmt.Errorf("resolve: %w", rcm.ErrNoRoute),
		fallback.UnsupportedOS:  fmt.Errorf("resolve: %w: on plan9: %w", rcm.ErrNoRoute, errors.ErrUnsupported),
		fallback.PeerRejected:   &rcm.RejectedError{Reason: rcm.ReasonConsumer},
		fallback.Admission:      &rcm.RejectedError{Reason: rcm.ReasonNoResources},
	} {
		require.Equal(t, reason, fallback.Classify(because(fallback.Soft, err)), err.Error())
	}
}

// Of a stranger it is remembered nevertheless, if the last try ends so.
func TestADialBeginsAgainIfWhoMayHaveTheKeyHangsUp(t *testing.T) {
	denied := because(fallback.Soft, rcm.ErrPeerDenied)
	require.False(t, lost(denied))
	gone := because(fallback.Soft, fmt.Errorf("%w: %w", rcm.ErrPeerDenied, syscall.ECONNRESET))
	require.True(t, lost(gone))
	require.Equal(t, fallback.PeerDenied, fallback.Classify(gone))
}

// TestKernelDialWithoutPermission has the device node that cannot be opened. Where
// there is none, nothing is said of it in any case.
func TestWhatElseIsForbiddenIsNotTakenForADeviceNode(t *testing.T) {
	for _, err := range []error{
		fmt.Errorf("%w: rdma_cm RESOLVE_ADDR: %w", rcm.ErrNoRoute, syscall.EACCES),
		&fs.PathError{Op: "open", Path: "/sys/class/infiniband/rxe0/node_type", Err: syscall.EACCES},
	} {
		err = because(fallback.RDMA, err)
		require.NotContains(t, err.Error(), "permission to open")
		require.Equal(t, fallback.Permission, fallback.Classify(err))
	}
}

func TestAProviderExplainsWhatItsDeviceRefuses(t *testing.T) {
	failed := &verbs.Error{Op: "create QP", Device: "rxe0", Err: syscall.EACCES}
	err := because(fallback.RDMA, fmt.Errorf("connect: %w", failed))
	require.Equal(t, fallback.Permission, fallback.Classify(err))
	if runtime.GOOS == "linux" {
		require.ErrorContains(t, err, "opened with other credentials")
	}
	for errno, reason := range map[syscall.Errno]fallback.Reason{ // what no limit explains
		syscall.EAGAIN: fallback.Admission, syscall.ENOMEM: fallback.NoMemory, syscall.EINVAL: fallback.Other,
	} {
		failed.Err = errno
		require.Equal(t, reason, fallback.Classify(because(fallback.RDMA, failed)), errno)
	}
}

func TestTheProgramsOwnChoiceIsNamed(t *testing.T) {
	const addr = "127.0.0.1:1"
	d := Dialer{Choose: func(context.Context, string, string) Transport { return TCP }}
	_, err := d.Dial("tcp", addr)
	require.Error(t, err)
	told := Explain(addr)
	require.NotEmpty(t, told)
	require.Equal(t, "callback", told[len(told)-1].Reason)
}

func TestADialTellsOfTheFailureThatSaysMost(t *testing.T) {
	reasonOf := func(failures ...error) fallback.Reason {
		var worst error
		for i, err := range failures {
			transport := fallback.RDMA
			if i == 0 {
				transport = fallback.Soft
			}
			worst = worse(worst, because(transport, err))
		}
		return fallback.Classify(worst)
	}
	forbidden := fmt.Errorf("%w: %w", rcm.ErrNoRoute, &fs.PathError{Op: "open", Path: "/dev/infiniband/rdma_cm", Err: syscall.EACCES})
	down := fmt.Errorf("%w: port 1 of rxe0 is DOWN", rcm.ErrNoRoute)
	for name, test := range map[string]struct {
		want     fallback.Reason
		failures []error
	}{
		"another host, no permission":       {fallback.Permission, []error{rcm.ErrNoRoute, forbidden, rcm.ErrOtherDevice}},
		"another host, the port is down":    {fallback.NoDevice, []error{rcm.ErrNoRoute, down, rcm.ErrOtherDevice}},
		"another host, nobody listens":      {fallback.NoListener, []error{rcm.ErrNoRoute, rcm.ErrNoListener, rcm.ErrOtherDevice}},
		"another host, over the second":     {fallback.HandshakeTimeout, []error{rcm.ErrNoRoute, rcm.ErrOtherDevice, rcm.ErrTimeout}},
		"no network namespace of ours":      {fallback.Directory, []error{rcm.ErrDirectory, rcm.ErrOtherDevice}},
		"that, the port is down":            {fallback.NoDevice, []error{rcm.ErrDirectory, down}},
		"this host, no permission":          {fallback.NoListener, []error{rcm.ErrNoListener, forbidden, forbidden}},
		"this host, the listener is not us": {fallback.PeerDenied, []error{rcm.ErrPeerDenied, down, rcm.ErrOtherDevice}},
	} {
		require.Equal(t, test.want, reasonOf(test.failures...), name)
	}
}

func TestAFailureOverOneDeviceSaysNothingOfOthers(t *testing.T) {
	over(t, softCarriers, func(t *testing.T, k carrier) {
		ln := k.listen(t)
		address := ln.Addr().String()
		a := attempt{d: &Dialer{}, network: "tcp", address: address, set: settings.Settings{Device: fallback.Device{Name: "rxe7"}}}
		negatives.Remember(a.remembered(), fallback.HandshakeTimeout, time.Now())
		c, err := (&Dialer{HeadStart: hang.Time}).Dial("tcp", address)
		require.NoError(t, err)
		defer c.Close()
		require.IsType(t, &Conn{}, c)
		told := Explain(address)
		require.NotEmpty(t, told)
		require.Equal(t, c.(*Conn).s.device, told[len(told)-1].Device)
	})
}
