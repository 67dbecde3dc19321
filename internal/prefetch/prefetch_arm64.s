#include "textflag.h"

// func ForWrite(addr uintptr)
TEXT ·ForWrite(SB), NOSPLIT, $0-8
	MOVD addr+0(FP), R0
	PRFM (R0), PSTL1KEEP
	PRFM 64(R0), PSTL1KEEP
	RET

// func ForRead(addr uintptr)
TEXT ·ForRead(SB), NOSPLIT, $0-8
	MOVD addr+0(FP), R0
	PRFM (R0), PLDL1KEEP
	RET
