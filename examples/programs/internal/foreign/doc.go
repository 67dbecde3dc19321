// Package foreign runs servers that know nothing of rnet, and examples/proxy in
// front of them, which makes them reachable by it.
package foreign
