//go:build amd64 || arm64

package mlx5

import (
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/frame"
)

// A method is one of the ioctl interface. Attributes are those of core/uverbs_std_types_*.c and
// of main.c.
type method struct {
	run        func(*ucontext, *frame.Call) unix.Errno
	attributes map[uint16]frame.Attribute
}

var (
	constant = frame.Attribute{Kind: frame.In, Min: 8, Max: 8}
	flags    = frame.Attribute{Kind: frame.In, Min: 4, Max: 8, Optional: true}
	out32    = frame.Attribute{Kind: frame.Out, Min: 4, Max: 4}
	out64    = frame.Attribute{Kind: frame.Out, Min: 8, Max: 8}
)

var methods = map[frame.MethodID]method{
	{Object: objectDevice, Method: 5}: {func(c *ucontext, r *frame.Call) unix.Errno { return c.device.QueryGIDTable(r) }, map[uint16]frame.Attribute{
		0: constant, 1: flags, 2: {Kind: frame.Out}, 3: out64}},
	{Object: objectDevice, Method: 6}: {func(c *ucontext, r *frame.Call) unix.Errno { return c.device.QueryGIDEntry(r) }, map[uint16]frame.Attribute{
		0: constant, 1: constant, 2: flags, 3: {Kind: frame.Out, Min: 32}}},
	{Object: objectUAR, Method: driverMethod}: {(*ucontext).allocUAR, map[uint16]frame.Attribute{
		attrUARHandle: {Kind: frame.NewObject}, attrUARType: constant, attrUAROffset: out64, attrUARLength: out32, attrUARPage: out32}},
	{Object: objectUAR, Method: driverMethod + 1}: {(*ucontext).destroyUAR, map[uint16]frame.Attribute{
		attrUARHandle: {Kind: frame.Object}}},
}

const objectDevice = 0

// attributesOf returns the methods as the frame wants them.
func attributesOf(methods map[frame.MethodID]method) frame.Methods {
	list := frame.Methods{}
	for id, m := range methods {
		list[id] = m.attributes
	}
	return list
}
