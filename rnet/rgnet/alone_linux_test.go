package rgnet

import (
	"bytes"
	"testing"

	"github.com/panjf2000/gnet/v2"
	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/hang"
	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
)

// The role "alone" is an engine that finds that it can serve TCP peers only.
func init() {
	roles.Add("alone", func([]string) error {
		b, err := Config{Transport: rnet.Auto}.bridge(new(echo), nil)
		if err != nil {
			return err
		}
		b.addrs, b.loopCount = []string{"tcp://127.0.0.1:1"}, 0
		return b.start() // gnet does not listen there
	})
}

func TestAnEngineThatServesTCPAloneSaysSo(t *testing.T) {
	cmd := roles.Command(t, "alone")
	cmd.Env = append(cmd.Env, "RNET_LOG=debug")
	in, err := cmd.StdinPipe() // the child ends with it at the latest
	require.NoError(t, err)
	defer in.Close()
	var said bytes.Buffer
	cmd.Stderr = &said
	require.NoError(t, cmd.Run())
	require.Contains(t, said.String(), "TCP peers alone are served")
	require.Contains(t, said.String(), "127.0.0.1:1")
}

// A transport is chosen for TCP addresses; the others are gnet's.
func TestPeersOfAUnixSocketAreServedWhateverTheTransport(t *testing.T) {
	path := t.TempDir() + "/echo"
	k := streamCarriers[0]
	s := &served{address: k.freeAddress(t), ended: make(chan error, 1)}
	h := check(t, new(echo))
	go func() {
		s.ended <- k.cfg.Rotate(h, []string{"tcp://" + s.address, "unix://" + path}, gnet.WithLogger(quiet{}))
	}()
	t.Cleanup(func() { s.stop(t) })
	hang.Receive(t, h.booted, "the engine boots")
	s.engine = h.engine
	k.awaitListener(t, s.address)
	echoes(t, dialUnix(t, path), 10, 100)
	echoes(t, k.dial(t, s.address), 10, 100)
	refused, err := overTCP.dialer().Dial("tcp", s.address)
	if err == nil {
		t.Cleanup(func() { refused.Close() })
		_, err = refused.Read(make([]byte, 1))
	}
	require.Error(t, err, "TCP peers are refused as before")
}
