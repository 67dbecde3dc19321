#include "textflag.h"

// Stores are seen in the order in which they were made, those to memory that is
// not cached too (Intel SDM, volume 3, 9.2.2 and 12.3: UC). A page that combines
// writes would need SFENCE before and after.

// func storeRecord(record *uint32, value uint32)
TEXT ·storeRecord(SB), NOSPLIT, $0-12
	MOVQ record+0(FP), AX
	MOVL value+8(FP), BX
	MOVL BX, (AX)
	RET

// func storeDoorbell(register *uint64, value uint64)
TEXT ·storeDoorbell(SB), NOSPLIT, $0-16
	MOVQ register+0(FP), AX
	MOVQ value+8(FP), BX
	MOVQ BX, (AX)
	RET
