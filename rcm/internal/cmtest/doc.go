// Package cmtest has what the tests of package rcm and of its backends share: a fabric
// with an address that it reaches, a device with a QP, pairs of them, and child
// processes that play roles.
package cmtest
