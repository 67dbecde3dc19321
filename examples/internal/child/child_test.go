package child_test

import (
	"fmt"
	"os"
	"os/signal"
	"testing"

	"github.com/seed-b9b531af/ramjet/examples/internal/child"
	"github.com/stretchr/testify/require"
)

// TestMain lets the test program be the second process, which plays the part
// that its argument names.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 {
		if play, ok := parts[os.Args[1]]; ok {
			os.Exit(play())
		}
	}
	os.Exit(m.Run())
}

var parts = map[string]func() int{
	"server": func() int {
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, os.Interrupt)
		fmt.Println(child.Announcement + "127.0.0.1:9")
		<-asked // ended by Stop
		return 0
	},
	"mute":    func() int { return 3 },
	"rambler": func() int { fmt.Println("nice weather"); return 0 },
	"broken": func() int {
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, os.Interrupt)
		fmt.Println(child.Announcement + "127.0.0.1:9")
		<-asked // ended by Stop
		return 4
	},
}

func TestAServerAnnouncesItselfAndEndsWhenItIsAsked(t *testing.T) {
	p, err := child.Start(t.Context(), "server")
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:9", p.Addr)
	require.NoError(t, p.Stop())
}

func TestAProcessThatAnnouncesNothingIsAnError(t *testing.T) {
	for part, want := range map[string]string{"mute": "exit status 3", "rambler": "nice weather"} {
		_, err := child.Start(t.Context(), part)
		require.ErrorContains(t, err, want)
	}
}

func TestStopTellsThatTheServerFailed(t *testing.T) {
	p, err := child.Start(t.Context(), "broken")
	require.NoError(t, err)
	require.ErrorContains(t, p.Stop(), "exit status 4")
}
