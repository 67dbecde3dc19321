package main

import (
	"context"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/seed-b9b531af/ramjet/rnet"
)

// trial is a library with a server and a client that use it.
type trial struct {
	name    string
	modules []string // that it is about; none for the standard library
	run     func(context.Context, *network) error
	source  string // of run, and of what dials for it: functions that have the lines that a program changes
	remark  string // what is particular about it over rnet
}

var trials = []trial{
	{"net/http", nil, tryHTTP, "tryHTTP", ""},
	{"net/http, HTTP/2 over TLS", nil, tryHTTP2, "tryHTTP2", ""},
	{"net/rpc", nil, tryNetRPC, "tryNetRPC", ""},
	{"fasthttp", []string{"github.com/valyala/fasthttp"}, tryFasthttp, "tryFasthttp", "it writes several pieces with one system call (writev) to a `*net.TCPConn` only"},
	{"gin", []string{"github.com/gin-gonic/gin"}, tryGin, "tryGin", ""},
	{"gorilla/websocket", []string{"github.com/gorilla/websocket"}, tryGorilla, "tryGorilla", ""},
	{"coder/websocket", []string{"github.com/coder/websocket"}, tryCoder, "tryCoder", ""},
	{"connect", []string{"connectrpc.com/connect"}, tryConnect, "tryConnect", ""},
	{"gRPC", []string{"google.golang.org/grpc"}, tryGRPC, "tryGRPC", "`examples/programs/grpc` kills and restarts the server"},
	{"ttrpc", []string{"github.com/containerd/ttrpc"}, tryTTRPC, "tryTTRPC", ""},
	{"go-redis, redcon", []string{"github.com/redis/go-redis/v9", "github.com/tidwall/redcon"}, tryRedis, "tryRedis", "go-redis asks a descriptor whether an idle connection is alive, and SyscallConn lends it one; a redis-server needs [the proxy](getting-started.md#a-program-that-exists)"},
	{"pgx, psql-wire", []string{"github.com/jackc/pgx/v5", "github.com/jeroenrinzema/psql-wire"}, tryPostgres, "tryPostgres", "a PostgreSQL needs [the proxy](getting-started.md#a-program-that-exists)"},
	{"etcd, its client", []string{"go.etcd.io/etcd/client/v3"}, tryEtcd, "tryEtcd", "the server is a part of etcd: put and get"},
	{"franz-go, kfake (Kafka)", []string{"github.com/twmb/franz-go", "github.com/twmb/franz-go/pkg/kfake"}, tryKafka, "tryKafka", "kfake is franz-go's Kafka server for tests; a real Kafka was not tried"},
	{"paho, mochi (MQTT)", []string{"github.com/eclipse/paho.mqtt.golang", "github.com/mochi-mqtt/server/v2"}, tryMQTT, "tryMQTT", ""},
	{"nats.go, nats-server", []string{"github.com/nats-io/nats.go", "github.com/nats-io/nats-server/v2"}, tryNATS, "tryNATS|\\(d natsDialer\\) Dial", "nats-server takes no listener: its connections are passed to `InProcessConn`, which copies once more"},
	{"hashicorp/raft", []string{"github.com/hashicorp/raft"}, tryRaft, "tryRaft|\\(s streamLayer\\) Dial", "its transports alone; `examples/programs/raft` runs a cluster"},
	{"smux", []string{"github.com/xtaci/smux"}, trySmux, "trySmux", ""},
	{"yamux", []string{"github.com/hashicorp/yamux"}, tryYamux, "tryYamux", ""},
	{"x/crypto/ssh", []string{"golang.org/x/crypto"}, trySSH, "trySSH", ""},
	{"pkg/sftp", []string{"github.com/pkg/sftp"}, trySFTP, "trySFTP", ""},
}

func (t trial) title() string {
	if len(t.modules) == 0 {
		return t.name
	}
	return fmt.Sprintf("[%s](https://pkg.go.dev/%s)", t.name, t.modules[0])
}

// version is that of the modules, as they are linked into this program.
func (t trial) version() string {
	if len(t.modules) == 0 {
		return "Go's"
	}
	build, ok := debug.ReadBuildInfo()
	var versions []string
	for _, path := range t.modules {
		version := "?"
		for _, m := range build.Deps {
			if ok && m.Path == path {
				version = m.Version
			}
		}
		// A version without a tag is as long as its commit.
		if before, _, untagged := strings.Cut(version, "-0."); untagged {
			version = before
		} else if strings.HasPrefix(version, "v0.0.0-") {
			version = version[len("v0.0.0-"):][:8]
		}
		versions = append(versions, version)
	}
	return strings.Join(versions, ", ")
}

//go:embed *.go
var sources embed.FS

// changes are the lines of the trial that differ from what a program over TCP has, as a
// program writes them, but for the usual Listen, and how many they are with it: those that use
// the network which run is given.
func (t trial) changes() (lines []string, n int) {
	files, err := sources.ReadDir(".")
	if err != nil {
		panic(err) // they are part of the program
	}
	function := regexp.MustCompile(`(?ms)^func (?:` + t.source + `)\(.*?^}$`)
	uses := regexp.MustCompile(`\b(?:[a-z]\.)?n\.(Listen|DialContext|Dial)\b`)
	for _, file := range files {
		text, err := sources.ReadFile(file.Name())
		if err != nil {
			panic(err)
		}
		for _, body := range function.FindAllString(string(text), -1) {
			for line := range strings.Lines(body) {
				if !uses.MatchString(line) {
					continue
				}
				if n++; strings.Contains(line, `n.Listen("tcp", "127.0.0.1:0")`) {
					continue
				}
				line = uses.ReplaceAllString(strings.TrimSpace(line), "rnet.$1")
				lines = append(lines, strings.ReplaceAll(line, "rnet.DialContext", "(&rnet.Dialer{}).DialContext"))
			}
		}
	}
	return lines, n
}

// way says which ends of the connections use rnet.
type way struct {
	name           string
	server, client bool
}

var ways = []way{{"both ends", true, true}, {"only the server", true, false}, {"only the client", false, true}}

// network has the functions of package rnet that the trials call, or for one end those of
// package net in their place. It counts what the connections are.
type network struct {
	way
	dialed, streams atomic.Int64

	mu        sync.Mutex
	listeners []net.Listener
}

func newNetwork(w way) *network { return &network{way: w} }

func (n *network) Listen(network, address string) (net.Listener, error) {
	listen := net.Listen
	if n.server {
		listen = rnet.Listen
	}
	ln, err := listen(network, address)
	if err == nil {
		n.mu.Lock()
		n.listeners = append(n.listeners, ln)
		n.mu.Unlock()
	}
	return ln, err
}

func (n *network) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	dial := (&net.Dialer{}).DialContext
	if n.client {
		dial = (&rnet.Dialer{}).DialContext
	}
	conn, err := dial(ctx, network, address)
	if err == nil {
		n.dialed.Add(1)
	}
	if _, ok := conn.(*rnet.Conn); ok {
		n.streams.Add(1)
	}
	return conn, err
}

func (n *network) Dial(network, address string) (net.Conn, error) {
	return n.DialContext(context.Background(), network, address)
}

// close closes what a library has left open.
func (n *network) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, ln := range n.listeners {
		ln.Close()
	}
}

// went says over what the connections went, if that is what it should be. bytes is how
// much the software HCA has carried meanwhile.
func (n *network) went(bytes uint64) (string, error) {
	dialed, streams := n.dialed.Load(), n.streams.Load()
	switch {
	case dialed == 0:
		return "", errors.New("it has not dialed")
	case n.server && n.client && streams != dialed:
		return "", fmt.Errorf("%d of %d connections were streams", streams, dialed)
	case n.server && n.client && bytes < uint64(len(message)): // a library may compress
		return "", fmt.Errorf("the software HCA carried %d bytes, the message has %d, there and back", bytes, len(message))
	case n.server && n.client:
		return "soft", nil
	case streams > 0:
		return "", fmt.Errorf("%d of %d connections were streams", streams, dialed)
	}
	return "TCP", nil
}

// softBytes is what sessions over the software HCA have delivered since the start.
func softBytes() (bytes uint64) {
	for _, d := range rnet.ReadStats().Devices {
		if d.Transport == rnet.Soft {
			bytes += d.BytesIn
		}
	}
	return bytes
}

// message is what each trial moves there and back. It is text, for some libraries move
// nothing else, and none that gets much shorter where a library compresses it.
var message = func() []byte {
	random := make([]byte, 72<<10)
	rand.NewChaCha8([32]byte{}).Read(random)
	return base64.StdEncoding.AppendEncode(nil, random)
}()

// check compares an answer with the message.
func check(answer []byte) error {
	if string(answer) != string(message) {
		return fmt.Errorf("the answer has %d bytes and is not the message, which has %d", len(answer), len(message))
	}
	return nil
}
