package main

// readTSC returns the processor's time stamp counter, which an emulated processor
// has as its own.
func readTSC() uint64
