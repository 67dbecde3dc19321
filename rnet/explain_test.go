package rnet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/seed-b9b531af/ramjet/fallback"
	"github.com/seed-b9b531af/ramjet/rcm"
	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/stretchr/testify/require"
)

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

func TestTheProgramsOwnChoiceIsNamed(t *testing.T) {
	const addr = "127.0.0.1:1"
	d := Dialer{Choose: func(context.Context, string, string) Transport { return TCP }}
	_, err := d.Dial("tcp", addr)
	require.Error(t, err)
	told := Explain(addr)
	require.NotEmpty(t, told)
	require.Equal(t, "callback", told[len(told)-1].Reason)
}
