#include "textflag.h"

// Stores are seen in the order in which they were made, those to memory that is
// not cached too (Intel SDM, volume 3, 9.2.2 and 12.3: UC).

// func storeRecord(record *uint32, value uint32)
TEXT ·storeRecord(SB), NOSPLIT, $0-12
	MOVQ record+0(FP), AX
	MOVL value+8(FP), BX
	MOVL BX, (AX)
	RET

// func storeDoorbell(record *uint32, value uint32, register *uint64, doorbell uint64)
TEXT ·storeDoorbell(SB), NOSPLIT, $0-32
	MOVQ record+0(FP), AX
	MOVL value+8(FP), BX
	MOVQ register+16(FP), CX
	MOVQ doorbell+24(FP), DX
	MOVL BX, (AX)
	MOVQ DX, (CX)
	RET

// Stores to a page that combines writes (WC) may be seen before stores to memory that precede them, and stay in a
// buffer for long. SFENCE orders them after what is before it, and empties the buffer (Intel SDM, volume 3, 12.3.1).

// func storeCombined(register *uint64, doorbell uint64)
TEXT ·storeCombined(SB), NOSPLIT, $0-16
	MOVQ register+0(FP), AX
	MOVQ doorbell+8(FP), BX
	SFENCE
	MOVQ BX, (AX)
	SFENCE
	RET

// func storeBlueFlame(register, wqe *byte, blocks int)
TEXT ·storeBlueFlame(SB), NOSPLIT, $0-24
	MOVQ register+0(FP), DI
	MOVQ wqe+8(FP), SI
	MOVQ blocks+16(FP), CX
	SFENCE
loop:
	MOVOU (SI), X0
	MOVOU 16(SI), X1
	MOVOU 32(SI), X2
	MOVOU 48(SI), X3
	MOVOU X0, (DI)
	MOVOU X1, 16(DI)
	MOVOU X2, 32(DI)
	MOVOU X3, 48(DI)
	ADDQ  $64, SI
	ADDQ  $64, DI
	DECQ  CX
	JNZ   loop
	SFENCE
	RET

// Memory of the device combines stores too. Loads of it may come before loads that precede them (Intel SDM,
// volume 3, 12.3.1), which LFENCE forbids.

// func storeWords(to, from *byte, words int)
TEXT ·storeWords(SB), NOSPLIT, $0-24
	MOVQ to+0(FP), DI
	MOVQ from+8(FP), SI
	MOVQ words+16(FP), CX
loop:
	MOVL (SI), AX
	MOVL AX, (DI)
	ADDQ $4, SI
	ADDQ $4, DI
	DECQ CX
	JNZ  loop
	SFENCE
	RET

// func loadWords(to, from *byte, words int)
TEXT ·loadWords(SB), NOSPLIT, $0-24
	MOVQ to+0(FP), DI
	MOVQ from+8(FP), SI
	MOVQ words+16(FP), CX
	LFENCE
loop:
	MOVL (SI), AX
	MOVL AX, (DI)
	ADDQ $4, SI
	ADDQ $4, DI
	DECQ CX
	JNZ  loop
	RET
