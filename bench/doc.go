// Bench compares ways to connect two processes of one host: TCP over the
// loopback interface, a Unix socket, and ramjet.
//
//	go run ./bench              everything but gnetidle, in a minute
//	go run ./bench programs     another page: programs as people have them
//	go run ./bench verbs        the verbs alone, in the manner of perftest
//	go run ./bench -help        what can be chosen
//
// One table comes out. The column "vs TCP" says how many times better a
// figure is than TCP's of the same run: 2x is half the time, half the memory,
// or twice the rate.
//
// # Who runs what
//
// For each test and transport the program starts itself twice more, as a
// server and as a client, and only tells them what to do; while they work it
// sleeps. Both sides are the same few loops over [net.Conn] for every
// transport: a transport is a name, a listen function and a dial function,
// and nothing else is known of it. In the gnet tests both sides are the same
// event handlers, run by gnet over TCP and Unix sockets and by package rgnet
// over ramjet.
//
// A test is cut into short rounds, and the rounds of the transports alternate
// (A B C A B C), so that whatever else goes on in the machine hits all of them alike. A
// figure is the median over the rounds. In each round the client opens its
// connections, works without being measured for a while (-warmup), works
// measured (-duration), and closes. Pairs of processes that are not at work
// wait, with their connections closed.
//
// # What is checked
//
// Each message carries its number, at the start, at each 4 KiB and at the end,
// and whoever receives it checks all of them: a lost, repeated, torn or
// misdirected message is a failure. So is every error of a dial, read, write
// or close, a process that ends, and one that gives no answer in time or does not
// end when it is to.
// Failures are printed below the table, figures of such tests get an
// asterisk, and the program's exit status is 1. If ramjet's connections turn
// out to be TCP, the table says so at the head of the column and below it.
//
// # How each figure is measured
//
// Round trip (rtt). One connection, one message at a time; the server sends
// each message back. The clock is read before the write and after the last
// byte of the answer, and nowhere else; the difference goes into an HDR
// histogram (three digits). p50, p99 and p99.9 are those of a round, then the
// median of the rounds. The -json file also has the quantiles of all rounds
// together, and the extremes.
//
// Nobody polls (parked). The same with RNET_PROFILE=efficient, which forbids
// ramjet to poll. TCP and Unix sockets never poll; they are measured again to
// stand in the same rounds. The other tests run with ramjet's default, or with
// -profile.
//
// Throughput, and one-way messages. The client writes messages of one size
// (1 MiB, 64 B) as fast as the connection takes them, one Write for each. The
// server reads as much as it gets, up to 64 KiB or one message if that is
// more, and checks every message. The last message is answered with the
// number of messages that the server has had; the clock stops there, so that
// only what has arrived counts.
//
// Requests. Round trips on many connections at once, with a goroutine for
// each on both sides. The rate is that of all together.
//
// Requests by gnet's event handlers (gnet). The same without a goroutine for
// each connection: the server's handler sends back what came, and the client's
// sends the next message when it has the answer. Both have one event loop, or
// -loops. The handler reads the clock once, after an answer and before the
// next message, so that a check and a stamp (some nanoseconds) are part of the
// latency, and the time at which all connections wait for the loops too: with
// a thousand of them in a closed loop it is most of it. -rate does not apply.
// A test that needs more open files than the system allows, after an attempt
// to raise RLIMIT_NOFILE, is left out, and the table says so.
//
// Connections opened. Dial, one message and its answer, close; by one
// goroutine, or by 16 that do not wait for each other. The message shows that
// the server has accepted and can use the connection. The server closes
// first, as servers of short connections do, which also keeps TCP from
// running out of ports.
//
// CPU time. User and system time of both processes (getrusage(2)) for the
// measured part, by operation, or by GiB for throughput. What the kernel does
// for a connection outside any process, in interrupts, is not in it.
//
// Idle connection. With one connection open and used, both processes collect
// garbage and report their memory; then a thousand more are opened, each used
// once, and both report it again; each round has new processes, as connections
// leave memory behind that others use again. The difference by connection is "Go heap and
// stacks", where the server has a goroutine in Read for each connection, as
// Go servers do, and the client has none; "Go heap alone" is without the
// stacks. "Resident" is the proportional set size: all memory of the process
// that is in use, also outside the Go heap, with memory that the processes
// share counted once. Memory inside the kernel, such as socket buffers, is in
// none of them. About 250 bytes by connection are the benchmark's own, for all
// transports the same. The test gnetidle, which runs only if it is asked for,
// is this for connections that event handlers have on both sides, where 150
// bytes are the benchmark's own.
//
// Floor. Two processes that share memory and poll it, with a CPU each: a word
// to and fro, and messages of 1 MiB through a ring of 256 KiB. No connection is
// faster. The row shows by how much each transport is slower.
//
// # Programs
//
// The page of programs has the same processes, rounds and checks. What they do
// is a program: net/http, HTTP/2, net/rpc, a reader goroutine with a channel.
// Each test says whether its loop is paced, which CPUs its processes have, how
// many client processes there are, and what else computes meanwhile. All of
// docs/performance.md, "Programs as people have them", is about it. With
// -containers each transport is measured twice: with both processes in one
// container, and in two.
//
// # Closed and open loop
//
// In a closed loop, the default, the next message waits for the answer to the
// one before: it shows what the transport can do, but a stall delays only one
// message, and hides from the quantiles those that would have been sent in
// it. With -rate, round trips and requests go in an open loop: messages are
// sent at set times whether or not earlier ones are answered, and latency
// counts from the time at which a message was due. One goroutine of the
// client writes for all connections. It wakes up for that as late as timers
// are, which is part of the latency; "written late by" is the median of it.
// What cannot be sent before the round ends is not sent, and the table says
// that the rate was missed.
//
// # Where the processes run
//
// The scheduler's choice decides much: a round trip between two CPUs costs
// several times that on one CPU, because waking an idle CPU is slow. With
// -pin one both processes share one CPU (and GOMAXPROCS is 1), with -pin two
// each has its own. Without it they run where the scheduler likes, as users'
// programs do; then look at the figures of more rounds (-rounds 20).
package main
