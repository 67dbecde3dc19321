package rnet

// The providers that sessions can run on.
import (
	_ "github.com/seed-b9b531af/ramjet/verbs/soft"
	_ "github.com/seed-b9b531af/ramjet/verbs/uverbs"
)
