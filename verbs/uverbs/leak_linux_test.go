package uverbs_test

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }
