// Package fallback decides which transport a connection gets, remembers why, and
// says what went wrong. By it a dial always ends in a connection if plain TCP
// would have made one, and a user can be told why it is not a faster one.
//
// What users of package rnet meet of it is [Reason], and [Classify], which finds
// the reason in an error of a dial:
//
//	conn, err := dialer.Dial("tcp", address) // with Transport: rnet.RDMA
//	if fallback.Classify(err) == fallback.NoDevice {
//
// The rest is for package rnet, which asks it at each step of a dial. In that
// order:
//
//   - [Policy] says what is wanted, from the program or the environment
//     ([FromEnv]).
//   - [Memory] remembers for a while which addresses failed lately, and why.
//   - [Gate] limits how many connections are set up at once.
//   - [HeadStart] says how long a dial waits for the accelerated connection
//     before it takes TCP.
//   - [Classify] turns an error into a [Reason]; code that knows better than an
//     errno says so with [Because].
//   - [Journal] keeps the last decisions for each address, each a [Decision], and counts them all.
//
// The package makes no connection itself and knows no transport. Everything but
// a HeadStart, which is one dial's, may be used by any number of goroutines at
// once. Only the standard library is imported, and it builds wherever that has the errnos
// of Unix: everywhere but on Plan 9.
package fallback
