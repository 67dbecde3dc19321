package interoptest

import (
	"fmt"
	"os"
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/leak"
	_ "github.com/seed-b9b531af/ramjet/verbs/uverbs"
)

// TestMain turns the test binary into the server of a benchmark when one
// started it as that.
func TestMain(m *testing.M) {
	if conf := os.Getenv(pingPongEnv); conf != "" {
		if err := servePingPong(conf); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	leak.Main(m)
}
