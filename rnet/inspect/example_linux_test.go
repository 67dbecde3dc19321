package inspect_test

import (
	"context"
	"fmt"
	"os"

	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/inspect"
)

// A process that has a listener is seen by the others of its user, and by
// itself.
func ExampleProcesses() {
	ln, err := rnet.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer ln.Close()

	processes, err := inspect.Processes(context.Background())
	if err != nil {
		panic(err)
	}
	for _, p := range processes {
		if p.Err == nil && p.PID == os.Getpid() {
			fmt.Println("listeners:", len(p.Snapshot.Listeners))
		}
	}
	// Output: listeners: 1
}
