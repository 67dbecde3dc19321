//go:build amd64 || arm64

package ibverbs

import "unsafe"

// extensionOf returns the operations that came later than those of the context, none if the
// library has it without.
func extensionOf(context uintptr) verbsContext {
	if view[ibvContext](context).abiCompat != extendedABI {
		return verbsContext{}
	}
	e := *view[verbsContext](context - unsafe.Sizeof(verbsContext{}))
	if e.sz < unsafe.Sizeof(e)+unsafe.Sizeof(ibvContext{}) {
		return verbsContext{}
	}
	return e
}

// queryExtended returns what the library tells of a device beside struct ibv_device_attr,
// nothing if it does not.
func (d *device) queryExtended() (*ibvDeviceAttrEx, error) {
	out := new(ibvDeviceAttrEx)
	if d.extension.queryDeviceEx == 0 {
		return out, nil
	}
	err := failed("ibv_query_device_ex", status(d.extension.queryDeviceEx, d.context, 0, uintptr(unsafe.Pointer(out)), unsafe.Sizeof(*out)))
	if isUnsupported(err) {
		return new(ibvDeviceAttrEx), nil
	}
	return out, err
}
