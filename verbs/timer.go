package verbs

import "time"

// rnrTimerTens holds the RNR NAK timer of each code in units of 10 us
// (InfiniBand Architecture Specification, table 45).
var rnrTimerTens = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRTimer returns how long an initiator waits after the peer had no receive
// posted, for the code 0 to 31 of QPAttr.MinRNRTimer. Code 0 is the longest.
func RNRTimer(code uint8) time.Duration {
	return time.Duration(rnrTimerTens[code&31]) * 10 * time.Microsecond
}

// AckTimeout returns how long an initiator waits for an acknowledgement, for
// the code 0 to 31 of QPAttr.Timeout; 0 means without end.
func AckTimeout(code uint8) time.Duration {
	if code&31 == 0 {
		return 0
	}
	return time.Duration(4096) << (code & 31)
}
