package fabric

import "fmt"

// A GIDKind is the type of a GID (enum ib_uverbs_gid_type).
type GIDKind uint32

// The kinds of GIDs.
const (
	KindIB    GIDKind = 0
	KindRoCE1 GIDKind = 1
	KindRoCE2 GIDKind = 2
)

// String is the kind as sysfs has it (core/cache.c, gid_type_str).
func (k GIDKind) String() string {
	if k == KindRoCE2 {
		return "RoCE v2"
	}
	return "IB/RoCE v1"
}

// A GID is a row of the GID table.
type GID struct {
	Bytes [16]byte
	Kind  GIDKind
}

func (g GID) String() string {
	text := ""
	for i := 0; i < 16; i += 2 {
		text += fmt.Sprintf(":%04x", be.Uint16(g.Bytes[i:]))
	}
	return text[1:]
}

// IPv4 says whether it is made of an address of IPv4.
func (g GID) IPv4() bool {
	return be.Uint64(g.Bytes[:]) == 0 && be.Uint32(g.Bytes[8:]) == 0xffff
}
