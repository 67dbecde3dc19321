package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	wire "github.com/jeroenrinzema/psql-wire"
	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"github.com/tidwall/redcon"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

func tryRedis(ctx context.Context, n *network) error {
	ln, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := redcon.NewServer("", func(conn redcon.Conn, cmd redcon.Command) {
		if len(cmd.Args) == 2 && string(cmd.Args[0]) == "echo" {
			conn.WriteBulk(cmd.Args[1])
			return
		}
		conn.WriteError("ERR unknown command")
	}, nil, nil)
	go server.Serve(ln)
	defer server.Close()
	client := redis.NewClient(&redis.Options{
		Addr: ln.Addr().String(), Protocol: 2, DisableIdentity: true,
		Dialer: n.DialContext,
	})
	defer client.Close()
	answer, err := client.Echo(ctx, message).Bytes()
	return errors.Join(err, check(answer))
}

func tryPostgres(ctx context.Context, n *network) error {
	columns := wire.Columns{{Name: "echo", Oid: pgtype.TextOID}}
	server, err := wire.NewServer(func(_ context.Context, query wire.Query) (wire.PreparedStatements, error) {
		return wire.Prepared(wire.NewStatement(func(_ context.Context, w wire.DataWriter, parameters []wire.Parameter) error {
			if len(parameters) != 1 {
				return errors.New("one parameter is echoed")
			}
			if err := w.Row([]any{string(parameters[0].Value())}); err != nil {
				return err
			}
			return w.Complete("SELECT 1")
		}, wire.WithColumns(columns), wire.WithParameters([]uint32{pgtype.TextOID}))), nil
	}, wire.Logger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	ln, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go server.Serve(ln)
	defer server.Close()
	config, err := pgx.ParseConfig("postgres://user@" + ln.Addr().String() + "/base?sslmode=disable")
	if err != nil {
		return err
	}
	config.DialFunc = n.DialContext
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var answer string
	err = conn.QueryRow(ctx, "SELECT $1", string(message)).Scan(&answer)
	return errors.Join(err, check([]byte(answer)))
}

func tryKafka(ctx context.Context, n *network) error {
	cluster, err := kfake.NewCluster(
		kfake.NumBrokers(1), kfake.SeedTopics(1, "echo"),
		kfake.ListenFn(n.Listen))
	if err != nil {
		return err
	}
	defer cluster.Close()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics("echo"),
		kgo.Dialer(n.DialContext))
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.ProduceSync(ctx, &kgo.Record{Topic: "echo", Value: message}).FirstErr(); err != nil {
		return err
	}
	fetches := client.PollFetches(ctx)
	if err := fetches.Err(); err != nil {
		return err
	}
	for _, record := range fetches.Records() {
		return check(record.Value)
	}
	return errors.New("no record has come")
}

func tryMQTT(ctx context.Context, n *network) error {
	ln, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	broker := mochi.New(&mochi.Options{Logger: slog.New(slog.DiscardHandler)})
	err = errors.Join(broker.AddHook(new(auth.AllowHook), nil), broker.AddListener(listeners.NewNet("echo", ln)))
	if err != nil {
		return err
	}
	go broker.Serve()
	defer broker.Close()
	options := paho.NewClientOptions().AddBroker("tcp://" + ln.Addr().String())
	options.SetCustomOpenConnectionFn(func(u *url.URL, _ paho.ClientOptions) (net.Conn, error) {
		return n.Dial("tcp", u.Host)
	})
	client := paho.NewClient(options)
	if err := done(client.Connect()); err != nil {
		return err
	}
	defer client.Disconnect(0)
	answer := make(chan []byte, 1)
	err = done(client.Subscribe("echo", 1, func(_ paho.Client, m paho.Message) {
		select {
		case answer <- m.Payload():
		default:
		}
	}))
	if err != nil {
		return err
	}
	if err := done(client.Publish("echo", 1, false, message)); err != nil {
		return err
	}
	select {
	case text := <-answer:
		return check(text)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func done(t paho.Token) error {
	if !t.WaitTimeout(trialTime) {
		return errors.New("the broker does not answer")
	}
	return t.Error()
}

// natsDialer is what nats.go asks to dial.
type natsDialer struct{ n *network }

func (d natsDialer) Dial(network, address string) (net.Conn, error) {
	return d.n.Dial(network, address)
}

// tryNATS gives the server connections of a listener by InProcessConn, for it takes no
// listener.
func tryNATS(ctx context.Context, n *network) error {
	broker, err := server.NewServer(&server.Options{DontListen: true, NoLog: true, NoSigs: true})
	if err != nil {
		return err
	}
	broker.Start()
	defer broker.Shutdown()
	if !broker.ReadyForConnections(10 * time.Second) {
		return errors.New("the server does not start")
	}
	ln, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer ln.Close()
	go func() {
		for {
			outside, err := ln.Accept() // ended by Close
			if err != nil {
				return
			}
			inside, err := broker.InProcessConn()
			if err != nil {
				outside.Close()
				return
			}
			go carry(inside, outside)
			go carry(outside, inside)
		}
	}()
	client, err := nats.Connect("nats://"+ln.Addr().String(), nats.SetCustomDialer(natsDialer{n}))
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := client.Subscribe("echo", func(m *nats.Msg) { m.Respond(m.Data) }); err != nil {
		return err
	}
	answer, err := client.RequestWithContext(ctx, "echo", message)
	if err != nil {
		return err
	}
	return check(answer.Data)
}

// carry passes bytes on until one side ends.
func carry(to, from net.Conn) {
	_, _ = io.Copy(to, from) // ended by either connection
	to.Close()
	from.Close()
}

// etcdKeys is as much of an etcd as puts and gets keys.
type etcdKeys struct {
	etcdserverpb.UnimplementedKVServer
	values sync.Map
}

func (e *etcdKeys) Put(_ context.Context, in *etcdserverpb.PutRequest) (*etcdserverpb.PutResponse, error) {
	e.values.Store(string(in.GetKey()), in.GetValue())
	return &etcdserverpb.PutResponse{Header: &etcdserverpb.ResponseHeader{}}, nil
}

func (e *etcdKeys) Range(_ context.Context, in *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	out := &etcdserverpb.RangeResponse{Header: &etcdserverpb.ResponseHeader{}}
	if value, ok := e.values.Load(string(in.GetKey())); ok {
		out.Kvs, out.Count = []*mvccpb.KeyValue{{Key: in.GetKey(), Value: value.([]byte)}}, 1
	}
	return out, nil
}

func tryEtcd(ctx context.Context, n *network) error {
	server := grpc.NewServer()
	etcdserverpb.RegisterKVServer(server, &etcdKeys{})
	ln, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go server.Serve(ln)
	defer server.Stop()
	client, err := clientv3.New(clientv3.Config{
		Context: ctx, Endpoints: []string{ln.Addr().String()}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return n.DialContext(ctx, "tcp", addr) }),
		},
	})
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := client.Put(ctx, "message", string(message)); err != nil {
		return err
	}
	answer, err := client.Get(ctx, "message")
	if err != nil {
		return err
	}
	if len(answer.Kvs) != 1 {
		return fmt.Errorf("%d values of one key", len(answer.Kvs))
	}
	return check(answer.Kvs[0].Value)
}
