package rdmahost

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/verbs/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }
