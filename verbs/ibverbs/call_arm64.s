//go:build linux

#include "textflag.h"

// invoke calls a C function. It is one itself, on the stack for such, with the address
// of a call in R0. The layout is that of call.
TEXT invoke(SB), NOSPLIT, $16
	MOVD R0, 8(RSP)
	MOVD R0, R9
	MOVD 64(R9), R10
	CBZ  R10, ready
	BL   (R10)
	MOVW ZR, (R0)
	MOVD 8(RSP), R9
ready:
	MOVD 8(R9), R0
	MOVD 16(R9), R1
	MOVD 24(R9), R2
	MOVD 32(R9), R3
	MOVD 40(R9), R4
	MOVD 48(R9), R5
	MOVD 0(R9), R10
	BL   (R10)
	MOVD 8(RSP), R9
	MOVD R0, 56(R9)
	MOVD 64(R9), R10
	CBZ  R10, done
	BL   (R10)
	MOVW (R0), R0
	MOVD 8(RSP), R9
	MOVD R0, 72(R9)
done:
	MOVD $0, R0
	RET

GLOBL ·invokeAddress(SB), NOPTR|RODATA, $8
DATA ·invokeAddress(SB)/8, $invoke(SB)
