package main

// A suite is the tests of one package, as its authors wrote them.
type suite struct {
	pkg  string
	ci   bool     // in the selection for each change
	args []string // for go test
	env  []string // of the tests
	// exceptions are the only tests left out. They cannot pass with any connection
	// but package net's own, since they assert its type, or watch how it works.
	exceptions []exception
	// more is Go for the file that links rnet in: it tells the suite's own check of leaks
	// of goroutines that rnet has while a listener is open.
	more string

	// From go list: the package's name and folder, and its module, none for the
	// standard library.
	name, dir, module, moduleDir string
}

// An exception is a test that is left out.
type exception struct{ test, why string }

// typeOf is the reason of most.
const typeOf = "asserts *net.TCPConn"

// hooked is the reason where a test watches calls by a variable of package net.
const hooked = "looks at calls for sockets, by a hook in package net"

// netTests are the tests of package net that dial or listen at TCP addresses.
const netTests = "^Test(Accept|Close|Conn|ConcurrentSetDeadline|Copy|Dial|File|IPv6LinkLocalUnicastTCP|ListenerClose|MultiPathTCP|NotTemporaryRead|" +
	"ProtocolDialError|ProtocolListenError|Raw|Read|Sendfile|TCP[^L]|TCPListenAfterClose|Various|Write|ZeroByteRead)"

var suites = []suite{
	{pkg: "net", args: []string{"-short", "-run", netTests}, exceptions: []exception{
		{"TestAcceptError", "asserts *net.TCPListener"},
		{"TestAcceptTimeout", "asserts *net.TCPListener"},
		{"TestAcceptTimeoutMustNotReturn", "asserts *net.TCPListener"},
		{"TestAcceptTimeoutMustReturn", "asserts *net.TCPListener"},
		{"TestCloseError", typeOf},
		{"TestCloseRead", typeOf},
		{"TestCloseUnblocksRead", typeOf},
		{"TestCloseWrite", typeOf},
		{"TestDialContextCancelRace", hooked},
		{"TestDialerFallbackDelay", hooked},
		{"TestDialerKeepAlive", hooked},
		{"TestDialParallel", hooked},
		{"TestFileCloseRace", typeOf},
		{"TestFileConn", typeOf},
		{"TestFileError", typeOf},
		{"TestFileListener", "asserts *net.TCPListener"},
		{"TestMultiPathTCP", typeOf},
		{"TestNotTemporaryRead", typeOf},
		{"TestRawConnControl", typeOf},
		{"TestRawConnReadWrite", typeOf},
		{"TestReadTimeoutUnblocksRead", typeOf},
		{"TestSendfile", hooked},
		{"TestSendfileParts", hooked},
		{"TestSendfileSeeked", hooked},
		{"TestSendfileWithExactLimit", hooked},
		{"TestSendfileWithLimitLargerThanFile", hooked},
		{"TestTCPConnKeepAliveConfig", typeOf},
		{"TestTCPConnKeepAliveConfigDialer", typeOf},
		{"TestTCPConnKeepAliveConfigListener", typeOf},
		{"TestZeroByteRead", typeOf},
	}},
	{pkg: "net/rpc", ci: true, exceptions: []exception{{"TestShutdown", typeOf}}},
	{pkg: "net/smtp", ci: true},
	{pkg: "net/http/httptest", ci: true},
	{pkg: "net/http/httputil", ci: true, exceptions: []exception{{"TestReverseProxyWebSocketHalfTCP", typeOf}}},
	// Without -short some tests dial hosts of the internet.
	{pkg: "crypto/tls", ci: true, args: []string{"-short"}},
	{pkg: "net/http", ci: true, args: []string{"-short"}, exceptions: []exception{
		{"TestInvalidChunkedBodies", typeOf},
		{"TestLinuxSendfile", "asserts *net.TCPListener"},
		{"TestClientWriteShutdown", typeOf},
		{"TestServerHijackGetsBackgroundByte_big", typeOf},
		{"TestServerHijackGetsFullBody", typeOf},
		{"TestServerHijackGetsBackgroundByte", typeOf},
		{"TestHijackAfterCloseNotifier", typeOf},
		{"TestTransportRequestWriteRoundTrip", typeOf},
	}},
	{pkg: "golang.org/x/net/http2"},
	// TestPreparedMessage seeds math/rand, which Go 1.24 and later do not heed by themselves.
	{pkg: "github.com/gorilla/websocket", ci: true, env: []string{"GODEBUG=randseednop=0"}},
	{pkg: "google.golang.org/grpc/internal/transport", exceptions: []exception{
		{"Test/TCPUserTimeout", typeOf},
	}, more: `
import "google.golang.org/grpc/internal/leakcheck"

// Test/HTTPConnectWithServerHello leaves a listener open and looks for goroutines.
func init() { leakcheck.RegisterIgnoreGoroutine("created by github.com/seed-b9b531af/ramjet/") }
`},
	{pkg: "github.com/valyala/fasthttp", exceptions: []exception{
		{"TestResponseVectoredWriteAllocations", typeOf},
		{"TestResponseVectoredWriteThroughPerIPConn", typeOf},
		{"TestRevertPull1233", typeOf},
	}},
	{pkg: "github.com/xtaci/smux"}, // two minutes, over TCP too
	{pkg: "golang.org/x/crypto/ssh", ci: true},
}
