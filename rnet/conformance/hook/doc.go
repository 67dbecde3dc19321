// Package hook sends the dials and listens of package net through rnet. It is
// linked into test binaries by the conformance program, which builds them with the
// tag conformance and a package net that has the two variables that the hook sets;
// without the tag the package is empty.
package hook
