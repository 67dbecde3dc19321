package rcm_test

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/rcm/internal/cmtest"
)

func TestMain(m *testing.M) { cmtest.Main(m) }
