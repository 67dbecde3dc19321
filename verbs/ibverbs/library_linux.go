//go:build amd64 || arm64

package ibverbs

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs"
)

const libraryName = "libibverbs.so.1"

// library holds the functions of the C library that are called by name.
type library struct {
	getDeviceList, freeDeviceList, getDeviceName      uintptr
	openDevice, closeDevice, queryDevice, queryPort   uintptr
	queryGIDTable                                     uintptr // 0 before rdma-core 33
	allocPD, deallocPD, regMR, reregMR, deregMR       uintptr
	createCompChannel, destroyCompChannel             uintptr
	createCQ, destroyCQ, resizeCQ, getCQEvent, ackCQ  uintptr
	createQP, modifyQP, queryQP, destroyQP            uintptr
	commandDestroyQP                                  uintptr // 0 if drivers of the library call it otherwise
	createSRQ, modifySRQ, querySRQ, destroySRQ        uintptr
	createAH, destroyAH, getAsyncEvent, ackAsyncEvent uintptr
	attachMcast, detachMcast                          uintptr
}

// loaded opens the library once. It stays open: its drivers do not close.
var loaded = sync.OnceValues(load)

// symbol is a function with the version by which its arguments are as they are here
// (libibverbs.map.in of rdma-core).
type symbol struct {
	name, version string
	address       *uintptr
	optional      bool
}

// privateVersion is that of functions for the drivers of the library, which has the
// number of its release.
const privateVersion = ""

func (l *library) symbols() []symbol {
	return []symbol{
		{"ibv_get_device_list", "IBVERBS_1.1", &l.getDeviceList, false},
		{"ibv_free_device_list", "IBVERBS_1.1", &l.freeDeviceList, false},
		{"ibv_get_device_name", "IBVERBS_1.1", &l.getDeviceName, false},
		{"ibv_open_device", "IBVERBS_1.1", &l.openDevice, false},
		{"ibv_close_device", "IBVERBS_1.1", &l.closeDevice, false},
		{"ibv_query_device", "IBVERBS_1.1", &l.queryDevice, false},
		{"ibv_query_port", "IBVERBS_1.1", &l.queryPort, false},
		{"_ibv_query_gid_table", "IBVERBS_1.11", &l.queryGIDTable, true},
		{"ibv_alloc_pd", "IBVERBS_1.1", &l.allocPD, false},
		{"ibv_dealloc_pd", "IBVERBS_1.1", &l.deallocPD, false},
		{"ibv_reg_mr_iova2", "IBVERBS_1.8", &l.regMR, false},
		{"ibv_rereg_mr", "IBVERBS_1.1", &l.reregMR, false},
		{"ibv_dereg_mr", "IBVERBS_1.1", &l.deregMR, false},
		{"ibv_create_comp_channel", "IBVERBS_1.0", &l.createCompChannel, false},
		{"ibv_destroy_comp_channel", "IBVERBS_1.0", &l.destroyCompChannel, false},
		{"ibv_create_cq", "IBVERBS_1.1", &l.createCQ, false},
		{"ibv_destroy_cq", "IBVERBS_1.1", &l.destroyCQ, false},
		{"ibv_resize_cq", "IBVERBS_1.1", &l.resizeCQ, false},
		{"ibv_get_cq_event", "IBVERBS_1.1", &l.getCQEvent, false},
		{"ibv_ack_cq_events", "IBVERBS_1.1", &l.ackCQ, false},
		{"ibv_create_qp", "IBVERBS_1.1", &l.createQP, false},
		{"ibv_modify_qp", "IBVERBS_1.1", &l.modifyQP, false},
		{"ibv_query_qp", "IBVERBS_1.1", &l.queryQP, false},
		{"ibv_destroy_qp", "IBVERBS_1.1", &l.destroyQP, false},
		{"ibv_cmd_destroy_qp", privateVersion, &l.commandDestroyQP, true},
		{"ibv_create_srq", "IBVERBS_1.1", &l.createSRQ, false},
		{"ibv_modify_srq", "IBVERBS_1.1", &l.modifySRQ, false},
		{"ibv_query_srq", "IBVERBS_1.1", &l.querySRQ, false},
		{"ibv_destroy_srq", "IBVERBS_1.1", &l.destroySRQ, false},
		{"ibv_create_ah", "IBVERBS_1.1", &l.createAH, false},
		{"ibv_destroy_ah", "IBVERBS_1.1", &l.destroyAH, false},
		{"ibv_attach_mcast", "IBVERBS_1.1", &l.attachMcast, false},
		{"ibv_detach_mcast", "IBVERBS_1.1", &l.detachMcast, false},
		{"ibv_get_async_event", "IBVERBS_1.1", &l.getAsyncEvent, false},
		{"ibv_ack_async_event", "IBVERBS_1.1", &l.ackAsyncEvent, false},
	}
}

var errNoLibrary = fmt.Errorf("%w: %s cannot be opened", verbs.ErrUnsupported, libraryName)

func load() (*library, error) {
	opened, err := purego.Dlopen(libraryName, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("%w, install rdma-core (Debian: libibverbs1 ibverbs-providers): %w", errNoLibrary, err)
	}
	for name, address := range map[string]*uintptr{"dlvsym": &versionedSymbol, "__errno_location": &errnoLocation} {
		if *address, err = purego.Dlsym(purego.RTLD_DEFAULT, name); err != nil {
			return nil, fmt.Errorf("%w: the C library of the system has no %s: %w", verbs.ErrUnsupported, name, err)
		}
	}
	l := new(library)
	return l, bind(opened, l.symbols())
}

// bind finds the functions in the opened library.
func bind(opened uintptr, list []symbol) error {
	for _, s := range list {
		if *s.address = s.find(opened); *s.address == 0 && !s.optional {
			return fmt.Errorf("%w: %s has no %s of version %s; it has to be of rdma-core 28 or later",
				verbs.ErrUnsupported, libraryName, s.name, s.version)
		}
	}
	return nil
}

// versionedSymbol is dlvsym, and errnoLocation __errno_location, once the library is open.
var versionedSymbol, errnoLocation uintptr

// find returns the address of the function, 0 if the library has none of that version.
func (s *symbol) find(opened uintptr) uintptr {
	if s.version == privateVersion {
		address, _ := purego.Dlsym(opened, s.name)
		return address
	}
	name, version := terminated(s.name), terminated(s.version)
	address, _ := handle(versionedSymbol, opened, uintptr(unsafe.Pointer(&name[0])), uintptr(unsafe.Pointer(&version[0])))
	return address
}

func terminated(s string) []byte { return append([]byte(s), 0) }

// errnoOf is the error of a number of errno, 0 if the library has not told.
func errnoOf(n uintptr) error {
	if n == 0 {
		n = uintptr(unix.EIO)
	}
	return unix.Errno(n)
}

// failed makes an error of what the library answered to a named function.
func failed(function string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%s: %w", function, verbs.ErrBusy)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%s: %w: %w", function, verbs.ErrInvalid, err)
	case isUnsupported(err):
		return fmt.Errorf("%s: %w: %w", function, verbs.ErrUnsupported, err)
	}
	return fmt.Errorf("%s: %w", function, err)
}

// isUnsupported reports whether the library, its driver or that of the kernel does not do
// what it was asked for.
func isUnsupported(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ENOTTY) || errors.Is(err, verbs.ErrUnsupported)
}
