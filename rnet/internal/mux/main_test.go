package mux

import (
	"os"
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs/soft"
)

func TestMain(m *testing.M) {
	soft.EnableTestDevice()
	os.Exit(m.Run())
}
