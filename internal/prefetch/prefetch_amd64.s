#include "textflag.h"

// PREFETCHW, for which the assembler has no name, does nothing on processors without it (Intel
// SDM, volume 2, PREFETCHW).

// func ForWrite(addr uintptr)
TEXT ·ForWrite(SB), NOSPLIT, $0-8
	MOVQ addr+0(FP), AX
	BYTE $0x0F; BYTE $0x0D; BYTE $0x08              // PREFETCHW (AX)
	BYTE $0x0F; BYTE $0x0D; BYTE $0x48; BYTE $0x40  // PREFETCHW 64(AX)
	RET

// func ForRead(addr uintptr)
TEXT ·ForRead(SB), NOSPLIT, $0-8
	MOVQ addr+0(FP), AX
	PREFETCHT0 (AX)
	RET
