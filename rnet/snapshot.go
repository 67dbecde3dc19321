package rnet

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet/internal/attach"
	"github.com/seed-b9b531af/ramjet/rnet/internal/settings"
)

// snapshot is what a process tells other processes of its user, in JSON. Package
// rnet/inspect has the same type for those who read it; see
// docs/observability.md.
type snapshot struct {
	Time    time.Time `json:"time"`
	PID     int       `json:"pid"`
	Program string    `json:"program"`
	Stats
	Streams   []StreamStats `json:"streams"`
	Truncated bool          `json:"truncated"`
}

// takeSnapshot returns the statistics of the process and of up to
// mostStreams connections.
func takeSnapshot(mostStreams int) snapshot {
	snap := snapshot{Time: time.Now(), PID: os.Getpid(), Stats: ReadStats(), Streams: ReadStreams(mostStreams)}
	if program, err := os.Executable(); err == nil {
		snap.Program = filepath.Base(program)
	}
	total := 0
	for _, s := range snap.Sessions {
		total += s.Streams
	}
	snap.Truncated = total > len(snap.Streams)
	return snap
}

// attachStreams is how many streams a reader is told of.
const attachStreams = 4096

// attachable is the endpoint that other processes read from. The sessions and
// the listeners hold it.
var attachable = attachment{attach.Server{Document: func() ([]byte, error) {
	return json.Marshal(takeSnapshot(attachStreams))
}}}

type attachment struct{ server attach.Server }

func (a *attachment) hold() {
	env, _ := settings.Environment() // an error of it has kept sessions from being made
	if env.NoStats {
		return
	}
	if err := a.server.Hold(); err != nil && env.Debug {
		settings.DebugLog.Debug("rnet: statistics cannot be read by other processes", "err", err)
	}
}

func (a *attachment) release() {
	if env, _ := settings.Environment(); !env.NoStats {
		a.server.Release()
	}
}
