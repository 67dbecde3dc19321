package uverbs_test

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/leak"
	"github.com/seed-b9b531af/ramjet/verbs/internal/serial"
)

func TestMain(m *testing.M) {
	serial.PaysAfter = 1 // most tests make few calls
	leak.Main(m)
}
