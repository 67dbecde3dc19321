// Package kerneltest tests package rnet over devices of the kernel: what happens when a device
// is removed or its interface goes down, limits of the administrator, which device a dial takes.
// The tests called TestKernel run in one virtual machine that verbs/guest boots:
//
//	go build -o /tmp/guest ./verbs/guest
//	go test -exec /tmp/guest ./rnet/kerneltest -run TestKernel
//
// Those called TestWire run in two that a wire joins:
//
//	go test -exec "/tmp/guest -pair -devices rxe0" ./rnet/kerneltest -run TestWire
//	go test -exec "/tmp/guest -pair -devices siw0" ./rnet/kerneltest -run TestWire
//
// or on two hosts of the model, but for those that disturb the wire:
//
//	go build -o /tmp/model ./verbs/uverbs/internal/model
//	go test -exec "/tmp/model -pair -link eth" ./rnet/kerneltest \
//		-run 'TestWire(ConnPassesNettest|CarriesDataBothWays)$/mlx5_0/(in_order|^[A-Z])'
//
// The test binary runs in both. The first machine's runs the tests; that of the second, the
// peer's machine, starts processes which the first asks for, by a TCP connection each.
//
// The tests of package rnet itself run over these devices too: those that are about any
// transport.
package kerneltest
