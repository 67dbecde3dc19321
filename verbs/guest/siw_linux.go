package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// buildSIW builds the siw driver, which Debian's kernels leave out, from Debian's
// source of the same version. Everything happens below dir; it returns the
// module's path.
func (b *builder) buildSIW(ctx context.Context, dir, series, release, number string) (string, error) {
	headers := "linux-headers-" + release
	common, err := dependency(ctx, headers, "linux-headers-")
	if err != nil {
		return "", err
	}
	kbuild, err := dependency(ctx, headers, "linux-kbuild-")
	if err != nil {
		return "", err
	}
	source := "linux-source-" + series
	// The headers want kbuild of their version or a newer one, and for hours after an update there is only that:
	// the signed kernel comes later.
	err = b.unpack(ctx, dir, headers+"="+number, common+"="+number, kbuild, source+"="+number)
	if err != nil {
		return "", err
	}
	const driver = "drivers/infiniband/sw/siw"
	archive := filepath.Join(dir, "usr", "src", source+".tar.xz")
	if _, err := command(ctx, dir, "tar", "-xf", archive, source+"/"+driver); err != nil {
		return "", err
	}
	// The headers' Makefile names its other half by its place on a machine where
	// it is installed.
	tree := filepath.Join(dir, "usr", "src", headers)
	makefile := filepath.Join(tree, "Makefile")
	text, err := os.ReadFile(makefile)
	if err != nil {
		return "", err
	}
	moved := strings.ReplaceAll(string(text), "/usr/src/", filepath.Join(dir, "usr", "src")+"/")
	if err := os.WriteFile(makefile, []byte(moved), 0o644); err != nil {
		return "", err
	}
	b.log("building siw for %s", release)
	place := filepath.Join(dir, source, driver)
	// BTF would need the kernel's own, and pahole; debugging information only makes
	// the guest's memory fuller.
	_, err = command(ctx, "", "make", "-s", "-j2", "-C", tree, "M="+place,
		"CONFIG_RDMA_SIW=m", "CONFIG_DEBUG_INFO_BTF_MODULES=", "KCFLAGS=-g0", "modules")
	if err != nil {
		return "", err
	}
	module := filepath.Join(place, "siw.ko")
	if !exists(module) {
		return "", fmt.Errorf("make has succeeded without making %s", module)
	}
	return module, nil
}
