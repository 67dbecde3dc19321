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

// func storeDoorbell(record *uint32, value uint32, register *uint64, doorbell uint64)
TEXT ·storeDoorbell(SB), NOSPLIT, $0-32
	MOVD record+0(FP), R0
	MOVW value+8(FP), R1
	MOVD register+16(FP), R2
	MOVD doorbell+24(FP), R3
	DMB  $3
	MOVW R1, (R0)
	DMB  $3
	MOVD R3, (R2)
	RET

// A page that combines writes is Normal memory, not cached: its stores may be merged and wait. DSB ST has all stores
// before it completed before anything that follows (Arm ARM, B2.3), and so ends the wait. That is the
// mmio_flush_writes of rdma-core, before and after.

// func storeCombined(register *uint64, doorbell uint64)
TEXT ·storeCombined(SB), NOSPLIT, $0-16
	MOVD register+0(FP), R0
	MOVD doorbell+8(FP), R1
	DSB  $14
	MOVD R1, (R0)
	DSB  $14
	RET

// func storeBlueFlame(register, wqe *byte, blocks int)
TEXT ·storeBlueFlame(SB), NOSPLIT, $0-24
	MOVD register+0(FP), R0
	MOVD wqe+8(FP), R1
	MOVD blocks+16(FP), R2
	DSB  $14
loop:
	VLD1.P 64(R1), [V0.B16, V1.B16, V2.B16, V3.B16]
	VST1.P [V0.B16, V1.B16, V2.B16, V3.B16], 64(R0)
	SUBS $1, R2
	BNE  loop
	DSB  $14
	RET

// Memory of the device is mapped in the same way. DMB OSHLD orders what was read before it ahead of what is read
// after it (Arm ARM, B2.3).

// func storeWords(to, from *byte, words int)
TEXT ·storeWords(SB), NOSPLIT, $0-24
	MOVD to+0(FP), R0
	MOVD from+8(FP), R1
	MOVD words+16(FP), R2
loop:
	MOVWU.P 4(R1), R3
	MOVW.P  R3, 4(R0)
	SUBS    $1, R2
	BNE     loop
	DSB     $14
	RET

// func loadWords(to, from *byte, words int)
TEXT ·loadWords(SB), NOSPLIT, $0-24
	MOVD to+0(FP), R0
	MOVD from+8(FP), R1
	MOVD words+16(FP), R2
	DMB  $1
loop:
	MOVWU.P 4(R1), R3
	MOVW.P  R3, 4(R0)
	SUBS    $1, R2
	BNE     loop
	RET
