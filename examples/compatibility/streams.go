package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"time"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/yamux"
	"github.com/pkg/sftp"
	"github.com/xtaci/smux"
	"golang.org/x/crypto/ssh"
)

// echoStream sends back what comes, until that ends.
func echoStream(stream io.ReadWriteCloser) {
	defer stream.Close()
	_, _ = io.Copy(stream, stream) // ended by the client's end
}

// exchange sends the message on the stream and looks at the answer.
func exchange(stream io.ReadWriter) error {
	written := make(chan error, 1)
	go func() {
		_, err := stream.Write(message)
		written <- err
	}()
	answer := make([]byte, len(message))
	_, err := io.ReadFull(stream, answer)
	return errors.Join(err, <-written, check(answer)) // ended by the answer, or by a reset
}

// acceptOne calls serve with the first connection of ln.
func acceptOne(ln net.Listener, serve func(net.Conn)) {
	conn, err := ln.Accept() // ended by the client, or by the trial's end
	if err == nil {
		serve(conn)
	}
}

func trySmux(ctx context.Context, n *network) error {
	ln, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go acceptOne(ln, func(conn net.Conn) {
		session, err := smux.Server(conn, nil)
		if err != nil {
			return
		}
		if stream, err := session.AcceptStream(); err == nil {
			echoStream(stream)
		}
	})
	conn, err := n.DialContext(ctx, "tcp", ln.Addr().String())
	if err != nil {
		return err
	}
	session, err := smux.Client(conn, nil)
	if err != nil {
		return err
	}
	defer session.Close()
	stream, err := session.OpenStream()
	if err != nil {
		return err
	}
	return exchange(stream)
}

func tryYamux(ctx context.Context, n *network) error {
	ln, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	config := yamux.DefaultConfig()
	config.LogOutput = io.Discard
	go acceptOne(ln, func(conn net.Conn) {
		session, err := yamux.Server(conn, config)
		if err != nil {
			return
		}
		if stream, err := session.AcceptStream(); err == nil {
			echoStream(stream)
		}
	})
	conn, err := n.DialContext(ctx, "tcp", ln.Addr().String())
	if err != nil {
		return err
	}
	session, err := yamux.Client(conn, config)
	if err != nil {
		return err
	}
	defer session.Close()
	stream, err := session.OpenStream()
	if err != nil {
		return err
	}
	return exchange(stream)
}

// sshServer accepts one client, and serves its first channel.
func sshServer(ln net.Listener, serve func(ssh.Channel)) error {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return err
	}
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(signer)
	go acceptOne(ln, func(conn net.Conn) {
		_, channels, requests, err := ssh.NewServerConn(conn, config)
		if err != nil {
			return
		}
		go ssh.DiscardRequests(requests)
		for c := range channels {
			channel, requests, err := c.Accept()
			if err != nil {
				return
			}
			go func() {
				for r := range requests {
					r.Reply(r.Type == "subsystem", nil)
				}
			}()
			serve(channel)
		}
	})
	return nil
}

// sshClient logs in.
func sshClient(conn net.Conn) (*ssh.Client, error) {
	c, channels, requests, err := ssh.NewClientConn(conn, conn.RemoteAddr().String(),
		&ssh.ClientConfig{User: "user", HostKeyCallback: ssh.InsecureIgnoreHostKey()})
	if err != nil {
		return nil, err
	}
	return ssh.NewClient(c, channels, requests), nil
}

func trySSH(ctx context.Context, n *network) error {
	ln, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := sshServer(ln, func(c ssh.Channel) { echoStream(c) }); err != nil {
		return err
	}
	conn, err := n.DialContext(ctx, "tcp", ln.Addr().String())
	if err != nil {
		return err
	}
	client, err := sshClient(conn)
	if err != nil {
		return err
	}
	defer client.Close()
	channel, requests, err := client.OpenChannel("echo", nil)
	if err != nil {
		return err
	}
	go ssh.DiscardRequests(requests)
	return exchange(channel)
}

func trySFTP(ctx context.Context, n *network) error {
	ln, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	err = sshServer(ln, func(c ssh.Channel) {
		server := sftp.NewRequestServer(c, sftp.InMemHandler())
		_ = server.Serve() // ended by the client
		server.Close()
	})
	if err != nil {
		return err
	}
	conn, err := n.DialContext(ctx, "tcp", ln.Addr().String())
	if err != nil {
		return err
	}
	login, err := sshClient(conn)
	if err != nil {
		return err
	}
	defer login.Close()
	client, err := sftp.NewClient(login)
	if err != nil {
		return err
	}
	defer client.Close()
	file, err := client.Create("/message")
	if err != nil {
		return err
	}
	if _, err := file.ReadFrom(bytes.NewReader(message)); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	if file, err = client.Open("/message"); err != nil {
		return err
	}
	defer file.Close()
	var answer bytes.Buffer
	_, err = file.WriteTo(&answer)
	return errors.Join(err, check(answer.Bytes()))
}

// streamLayer makes raft's connections.
type streamLayer struct {
	net.Listener
	n *network
}

func (s streamLayer) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return s.n.DialContext(ctx, "tcp", string(address))
}

func tryRaft(ctx context.Context, n *network) error {
	ln, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	to := raft.NewNetworkTransport(streamLayer{ln, n}, 1, trialTime, io.Discard)
	defer to.Close()
	got := make(chan []byte, 1)
	go func() {
		select {
		case call := <-to.Consumer():
			request, ok := call.Command.(*raft.AppendEntriesRequest)
			if !ok || len(request.Entries) != 1 {
				call.Respond(nil, errors.New("one entry is expected"))
				return
			}
			got <- request.Entries[0].Data
			call.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
		case <-ctx.Done():
		}
	}()
	other, err := n.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	from := raft.NewNetworkTransport(streamLayer{other, n}, 1, trialTime, io.Discard)
	defer from.Close()
	var response raft.AppendEntriesResponse
	err = from.AppendEntries("to", raft.ServerAddress(ln.Addr().String()),
		&raft.AppendEntriesRequest{Entries: []*raft.Log{{Data: message}}}, &response)
	if err != nil {
		return err
	}
	return check(<-got)
}
