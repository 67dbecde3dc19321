package rdmahost_test

import (
	"fmt"
	"log"
	"net/netip"
	"syscall"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/rdmahost"
)

// What the kernel tells of its devices to anybody: also why one cannot be used, because it has
// no node or a port is down.
func ExampleDescribe() {
	devices, err := rdmahost.Describe()
	if err != nil {
		log.Fatal(err)
	}
	for i := range devices {
		d := &devices[i]
		fmt.Println(d.Name, d.Transport, d.Driver, "opened by", d.Node)
		for _, p := range d.Ports {
			fmt.Printf("  port %d on %s: %s, %s, %d addresses\n", p.Port, p.Netdev, p.State, p.Rate, len(p.GIDs))
		}
	}
}

// A port of RoCE has an address for each address of its interface, and of each version of RoCE.
func ExamplePreferredGID() {
	var table []verbs.GIDEntry
	for i, row := range []struct {
		addr string
		typ  verbs.GIDType
	}{
		{"fe80::5054:ff:fe12:3456", verbs.GIDTypeRoCEv1},
		{"fe80::5054:ff:fe12:3456", verbs.GIDTypeRoCEv2},
		{"::ffff:10.0.0.1", verbs.GIDTypeRoCEv1},
		{"::ffff:10.0.0.1", verbs.GIDTypeRoCEv2},
	} {
		gid := verbs.GID(netip.MustParseAddr(row.addr).As16())
		table = append(table, verbs.GIDEntry{GID: gid, Index: i, Port: 1, Type: row.typ})
	}
	if row, ok := rdmahost.PreferredGID(table, netip.MustParseAddr("10.0.0.1")); ok {
		fmt.Println("row", row.Index)
	}
	// Output: row 3
}

// The limits of this process come from ReadLimits; these are made up. A driver refuses to pin
// memory beyond RLIMIT_MEMLOCK with ENOMEM.
func ExampleLimits_Explain() {
	limits := rdmahost.Limits{Memlock: rdmahost.Memlock{Soft: 8 << 20, Hard: 8 << 20, Pinned: 6 << 20}}
	fmt.Println(limits.Explain(rdmahost.Failure{Op: "register MR", Device: "mlx5_0", Bytes: 4 << 20, Err: syscall.ENOMEM}))
	// Output: RLIMIT_MEMLOCK is 8 MiB, of which 6 MiB are pinned, 4 MiB more needed: ulimit -l, or LimitMEMLOCK= of systemd
}
