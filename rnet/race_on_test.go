//go:build race

package rnet

const raceEnabled = true
