// Package interoptest tests package uverbs against C programs: the pingpong programs of
// rdma-core, and perftest, whose conversation about addresses and results is spoken here. The
// first device of RAMJET_DEVICES that is not iWARP is at both ends. They run in the virtual
// machine that verbs/guest boots,
//
//	go build -o /tmp/guest ./verbs/guest
//	go test -exec /tmp/guest ./verbs/uverbs/interoptest
//
// on a host of the model (.ci/model has its commands), and on hardware with its device in the
// variable and the programs installed.
package interoptest
