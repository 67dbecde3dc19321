#include "textflag.h"

// DMB OSH orders what this processor has read and written before it ahead of what
// it writes after it, as observers of the outer shareable domain see it, devices
// among them (Arm ARM, B2.3). That is the dma_wmb and __iowmb of Linux, with the
// reads of completions too, which the record of a CQ gives back.

// func storeRecord(record *uint32, value uint32)
TEXT ·storeRecord(SB), NOSPLIT, $0-12
	MOVD record+0(FP), R0
	MOVW value+8(FP), R1
	DMB  $3
	MOVW R1, (R0)
	RET

// func storeDoorbell(register *uint64, value uint64)
TEXT ·storeDoorbell(SB), NOSPLIT, $0-16
	MOVD register+0(FP), R0
	MOVD value+8(FP), R1
	DMB  $3
	MOVD R1, (R0)
	RET
