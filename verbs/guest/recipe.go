package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// What goes into a guest. A change here makes a new entry in the cache, because
// the entries carry the recipe's hash.

// recipeVersion grows when the code changes what it makes of the lists below.
const recipeVersion = 1

// modules are loaded at boot in this order, each after those it depends on. The
// channel to the host comes first, so that what fails later can be told.
var modules = []string{
	"virtio_pci",
	"virtio_console",
	"crc32_generic", // rxe refuses to add a link without it
	"crc32c_generic",
	"rdma_rxe",
	"ib_uverbs",
	"rdma_ucm",
	"ib_umad",
	"dummy",
}

// deviceModules are loaded at boot if the devices are asked for, pairModules in a
// pair of guests.
var (
	deviceModules = map[string]string{"siw": "siw"}
	pairModules   = []string{"virtio_net"}
)

// moreModules lie in the guest for modprobe and for what the kernel itself asks
// for.
var moreModules = []string{
	"siw", "virtio_net", "veth",
	"sch_netem", "sch_prio", "sch_tbf", "sch_ingress",
	"cls_matchall", "cls_u32", "cls_flower", "act_gact", "act_mirred",
	"inet_diag", "tcp_diag", "udp_diag", "unix_diag",
}

// moduleParameters are given to modules that are loaded at boot.
var moduleParameters = map[string]string{"dummy": "numdummies=0"}

// packages are the Debian packages with the C programs and with the libraries
// they need.
var packages = []string{
	"busybox-static", "dash",
	"ibverbs-utils", "ibverbs-providers", "rdmacm-utils", "perftest", "iproute2",
	"libc6", "libgcc-s1", "libibverbs1", "librdmacm1", "libibumad3",
	"libnl-3-200", "libnl-route-3-200", "libpci3", "libudev1",
	"libmnl0", "libbpf1", "libelf1", "zlib1g", "libcap2", "libbsd0", "libmd0",
	"libdb5.3", "libselinux1", "libpcre2-8-0", "libtirpc3",
	"libgssapi-krb5-2", "libkrb5-3", "libk5crypto3", "libkrb5support0",
	"libcom-err2", "libkeyutils1", "libxtables12", "libssl3",
}

// programs are what the guest gets beside everything in the packages' /usr/bin.
var programs = []string{"/bin/dash", "/bin/ip", "/bin/ss", "/sbin/tc"}

// plugins are libraries that are loaded by name, which no program's header tells:
// the providers of the two devices, and what pthread_cancel needs. Each is a
// pattern below the directory of libraries.
var plugins = []string{
	"libibverbs/librxe-rdmav*.so", "libibverbs/libsiw-rdmav*.so", "libgcc_s.so.1",
}

// providerConfiguration is the directory in which libibverbs looks for its
// providers.
const providerConfiguration = "/etc/libibverbs.d/"

// buildPackages are the Debian packages that the host needs to make guests and to
// run them, each with the program that shows whether it is there.
var buildPackages = []struct{ program, pkg string }{
	{"qemu-system-x86_64", "qemu-system-x86"},
	{"gcc", "gcc"},
	{"make", "make"},
	{"xz", "xz-utils"},
	{"zstd", "zstd"},
	{"tar", "tar"},
	{"dpkg-deb", "dpkg"},
	{"apt-get", "apt"},
}

// hostLibraries are the packages that Debian's prebuilt kernel build programs
// need beside those; they cannot be looked for by a program's name.
var hostLibraries = []string{"libc6-dev", "libelf1"}

// recipeKey returns the key of what a cache entry is made of.
func recipeKey(ingredients ...any) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %v", recipeVersion, ingredients))
	return hex.EncodeToString(sum[:6])
}
