package rnet

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheIWARPListenersPort(t *testing.T) {
	for port, want := range map[uint16]uint16{
		1: 16385, 80: 16464, 9000: 25384, 16383: 32767,
		16384: 0,
		16385: 1, 16464: 80, 17407: 1023, 32767: 16383,
		32768: 49152, 49151: 65535, 49152: 32768, 65535: 49151,
	} {
		require.Equal(t, want, iwarpPort(port), "port %d", port)
	}
}

func TestADeviceAndItsPortCanBeChosen(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the software HCA needs Linux")
	}
	ln, err := (&ListenConfig{Device: "soft0/1"}).Listen(ctxBackground, "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	for _, device := range []string{"", "soft0", "soft0/1"} {
		c, err := (&Dialer{Transport: Soft, Device: device}).Dial("tcp", ln.Addr().String())
		require.NoError(t, err)
		require.Equal(t, "soft0", c.(*Conn).s.device)
		require.NoError(t, c.Close())
	}
}

func TestADeviceThatIsNoneIsRefused(t *testing.T) {
	for device, says := range map[string]string{
		"mlx5_0:2": `device "mlx5_0:2", want a name, or a name and a port from 1 to 255: mlx5_0/2`,
		"mlx5_0/":  `device "mlx5_0/", want`,
		"soft0/0":  `device "soft0/0", want`,
		"soft0/2":  "device soft0 has one port, not 2",
	} {
		_, err := (&Dialer{Device: device}).Dial("tcp", "127.0.0.1:1")
		require.ErrorContains(t, err, says)
		_, err = (&ListenConfig{Device: device}).Listen(ctxBackground, "tcp", "127.0.0.1:0")
		require.ErrorContains(t, err, says)
	}
}

func TestThePortIsNamedWhereThereAreSeveral(t *testing.T) {
	require.Equal(t, "soft0", portName("soft0", 1, 1))
	require.Equal(t, "mlx5_0/1", portName("mlx5_0", 2, 1))
	require.Equal(t, "mlx5_0/2", portName("mlx5_0", 2, 2))
}
