package main

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/examples/internal/endpoint/endpointtest"
)

func TestMain(m *testing.M) { endpointtest.Main(m, main) }

func TestTwoProcesses(t *testing.T) { endpointtest.Run(t, &program, "slot 3: 9, and 5 more are 14") }

func TestTheServerServesOnAfterAClientThatBreaksOff(t *testing.T) { endpointtest.ServesOn(t, &program) }

func TestTheClientEndsWithItsServer(t *testing.T) { endpointtest.EndsWithItsServer(t, &program) }
