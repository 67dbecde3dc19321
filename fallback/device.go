package fallback

import (
	"fmt"
	"strconv"
	"strings"
)

// Device is the only device that may be used, and the only port of it. The zero
// Device allows all.
type Device struct {
	Name string // "rxe0", "mlx5_0" or the like
	Port uint8  // from 1; 0 allows all
}

// String returns the device as RNET_DEVICE has it: "mlx5_0", or "mlx5_0/2" with
// a port, as `rdma link` prints it.
func (d Device) String() string {
	if d.Port == 0 {
		return d.Name
	}
	return d.Name + "/" + strconv.Itoa(int(d.Port))
}

// ParseDevice is the inverse of String.
func ParseDevice(text string) (Device, error) {
	name, port, withPort := strings.Cut(text, "/")
	d := Device{Name: name}
	if withPort {
		n, _ := strconv.ParseUint(port, 10, 8)
		d.Port = uint8(n)
	}
	// A second spelling of a number does not come out again, nor does one that
	// is none. A colon is how other programs write a port; no name has one.
	if d.String() != text || withPort && d.Name == "" || strings.Contains(name, ":") {
		return Device{}, fmt.Errorf("device %q, want a name, or a name and a port from 1 to 255: mlx5_0/2", text)
	}
	return d, nil
}
