// Package differential tests that rnet's connections are as TCP's. Its tests do the
// same random calls on a TCP connection and on a stream over the software HCA, in one
// process and between two, of which either may be the one that dials and the one that
// ends, and compare what each call returned: counts, bytes, errors with all they wrap. What may
// differ is listed in docs/differences.md, and nothing else may.
//
// Time does not count. After each call the test waits until all that it has sent has
// been taken in at the other end: on TCP until the kernel says so, on a session until
// an echo on another of its streams is back, for frames keep their order. The echo also has
// both ends look at the session, which they may forget to do. So other rounds have no echo,
// but a pause, and a longer one if the two differ then, and others a session for each
// connection. A call that
// waits is left alone until it has to return, and the TCP connection, which goes first,
// says when that is. If the two differ nevertheless TCP gets more tries: what it does
// once in a few is not a difference.
//
// A seed names a sequence. One that fails is shortened, and printed with its seed:
//
//	go test ./rnet/internal/differential -differential 1h
//	go test ./rnet/internal/differential -seed 1234
package differential
