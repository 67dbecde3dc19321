package fallback_test

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/seed-b9b531af/ramjet/fallback"
)

func ExampleClassify() {
	err := os.NewSyscallError("memfd_create", syscall.EPERM)
	fmt.Println(fallback.Classify(err))

	reason := fallback.Classify(fallback.Because(fallback.MemfdForbidden, err))
	fmt.Println(reason)
	fmt.Println(reason.Meaning())
	fmt.Println(reason.Remedy())
	// Output:
	// permission
	// memfd-forbidden
	// the system or a sandbox forbids memfd_create
	// Allow memfd_create in the seccomp profile of the container or service.
}

// A value that cannot be read is an error that says which are allowed.
func ExampleFromEnv() {
	environment := map[string]string{"RNET_TRANSPORT": "tcp", "RNET_PROFILE": "fast"}
	policy, err := fallback.FromEnv(func(name string) string { return environment[name] })
	fmt.Println(policy.Transport)
	fmt.Println(err)
	// Output:
	// tcp
	// fallback: RNET_PROFILE: unknown profile "fast", want one of ["balanced" "latency" "efficient"]
}

// A failure is remembered longer when it comes again.
func ExampleMemory() {
	now := time.Now()
	memory := fallback.NewMemory(0, func() time.Time { return now })
	for range 2 {
		memory.Remember("storage-7:9000", fallback.PeerDenied, now)
		begin := now
		for known := true; known; _, known = memory.Recall("storage-7:9000") {
			now = now.Add(time.Second)
		}
		fmt.Println("tried again after", now.Sub(begin))
	}
	// Output:
	// tried again after 5s
	// tried again after 10s
}

// Dials that go the same way are one decision that repeats.
func ExampleJournal() {
	var journal fallback.Journal
	for range 3 {
		journal.Record(fallback.Decision{Addr: "storage-7:9000", Transport: fallback.TCP, Reason: fallback.NoListener})
	}
	journal.Record(fallback.Decision{Addr: "storage-7:9000", Transport: fallback.Soft})
	for _, d := range journal.Last("storage-7:9000") {
		fmt.Println(d.Transport, d.Reason, "and", d.Repeats, "more")
	}
	// Output:
	// soft none and 0 more
	// tcp no-listener and 2 more
}

// A goroutine that finds a gate full waits for room, or until its time is over.
func ExampleGate() {
	gate := fallback.NewGate(1)
	fmt.Println(gate.Enter(context.Background()))
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	fmt.Println(gate.Enter(ctx))
	gate.Leave()
	fmt.Println(gate.Enter(context.Background()))
	// Output:
	// <nil>
	// context deadline exceeded
	// <nil>
}
