//go:build amd64 || arm64

package ibverbs

import (
	"unsafe"

	_ "github.com/ebitengine/purego" // has the runtime make threads that C code can run on
)

// call is a call of a C function with up to six arguments that are integers or
// pointers. Its layout is known to invoke.
type call struct {
	fn     uintptr
	args   [6]uintptr
	result uintptr
	// where, if not 0, is __errno_location. Then errno is what the function has put
	// there, 0 if nothing; another thread would not find it.
	where uintptr
	errno uintptr
}

// invokeAddress is the address of invoke: assembly that the runtime calls on a stack for
// C code, with the address of a call.
var invokeAddress uintptr

// cgocall is what cgo makes of a call. It tells the scheduler, so that a function that
// blocks keeps no other goroutine off the processor. Nothing of it is on the heap: the
// stack of a goroutine that is in a call does not move.
//
//go:noescape
//go:linkname cgocall runtime.cgocall
func cgocall(fn, arg unsafe.Pointer) int32

// do makes the call.
func (c *call) do() { cgocall(pointer(invokeAddress), unsafe.Pointer(c)) }

// pointer is an address that C code has given.
func pointer(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }

// view is a structure of the library. It lies outside of Go's heap.
func view[T any](address uintptr) *T { return (*T)(pointer(address)) }

// number calls a function that returns a number. Go's memory whose address is converted in
// the list of arguments is on the heap, and stays.
//
//go:uintptrescapes
func number(fn uintptr, args ...uintptr) int32 {
	c := call{fn: fn}
	copy(c.args[:], args)
	c.do()
	return int32(c.result)
}

// status calls a function that returns 0 or a number of errno, or -1 with one in errno.
//
//go:uintptrescapes
func status(fn uintptr, args ...uintptr) error {
	c := call{fn: fn, where: errnoLocation}
	copy(c.args[:], args)
	c.do()
	switch n := int32(c.result); {
	case n > 0:
		return errnoOf(uintptr(n))
	case n < 0:
		return errnoOf(c.errno)
	}
	return nil
}

// handle calls a function that returns the address of what it has made, or NULL with a
// number in errno.
//
//go:uintptrescapes
func handle(fn uintptr, args ...uintptr) (uintptr, error) {
	c := call{fn: fn, where: errnoLocation}
	copy(c.args[:], args)
	c.do()
	if c.result == 0 {
		return 0, errnoOf(c.errno)
	}
	return c.result, nil
}

// count calls a function that returns a number of things, or a negative one of errno.
//
//go:uintptrescapes
func count(fn uintptr, args ...uintptr) (int, error) {
	c := call{fn: fn}
	copy(c.args[:], args)
	c.do()
	if n := int(c.result); n < 0 {
		return 0, errnoOf(uintptr(-n))
	}
	return int(c.result), nil
}
