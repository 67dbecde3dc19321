package main

import (
	"testing"

	"github.com/seed-b9b531af/ramjet/examples/internal/endpoint/endpointtest"
)

func TestMain(m *testing.M) { endpointtest.Main(m, main) }

func TestTwoProcesses(t *testing.T) {
	endpointtest.Run(t, &program, "50 round trips of 64 bytes over ")
}

func TestTheServerServesOnAfterAClientThatBreaksOff(t *testing.T) { endpointtest.ServesOn(t, &program) }

func TestTheClientEndsWithItsServer(t *testing.T) { endpointtest.EndsWithItsServer(t, &program) }
