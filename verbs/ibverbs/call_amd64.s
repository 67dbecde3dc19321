//go:build linux

#include "textflag.h"

// invoke calls a C function. It is one itself, on the stack for such, with the address
// of a call in DI. The layout is that of call.
TEXT invoke(SB), NOSPLIT, $16
	MOVQ DI, 8(SP)
	MOVQ DI, R11
	MOVQ 64(R11), R10
	TESTQ R10, R10
	JZ   ready
	CALL R10
	MOVL $0, (AX)
	MOVQ 8(SP), R11
ready:
	MOVQ 8(R11), DI
	MOVQ 16(R11), SI
	MOVQ 24(R11), DX
	MOVQ 32(R11), CX
	MOVQ 40(R11), R8
	MOVQ 48(R11), R9
	MOVQ 0(R11), R10
	XORL AX, AX
	CALL R10
	MOVQ 8(SP), DI
	MOVQ AX, 56(DI)
	MOVQ 64(DI), R10
	TESTQ R10, R10
	JZ   done
	CALL R10
	MOVL (AX), AX
	MOVQ 8(SP), DI
	MOVQ AX, 72(DI)
done:
	XORL AX, AX
	RET

GLOBL ·invokeAddress(SB), NOPTR|RODATA, $8
DATA ·invokeAddress(SB)/8, $invoke(SB)
