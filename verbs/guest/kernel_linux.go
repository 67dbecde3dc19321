package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed-b9b531af/ramjet/verbs/guest/internal/cpio"
)

// kernel is a kernel that can be booted, as it lies in the cache.
type kernel struct {
	image   string // without compression: it starts 3 s sooner in emulation
	archive string // cpio with the modules
	release string // as in uname -r
	modules moduleSet
}

// kernel returns Debian's kernel of a series, for example 6.1, with its modules and
// a siw that is built for it.
func (b *builder) kernel(ctx context.Context, series string) (kernel, error) {
	name := "linux-" + series + "-" + recipeKey(series, modules, deviceModules, pairModules, moreModules)
	dir, err := b.entry(ctx, name, func(dir string) error { return b.makeKernel(ctx, dir, series) })
	if err != nil {
		return kernel{}, fmt.Errorf("kernel %s: %w", series, err)
	}
	release, err := os.ReadFile(filepath.Join(dir, "release"))
	if err != nil {
		return kernel{}, err
	}
	set, err := readModules(filepath.Join(dir, "modules"))
	if err != nil {
		return kernel{}, err
	}
	return kernel{
		image:   filepath.Join(dir, "vmlinux"),
		archive: filepath.Join(dir, "modules.cpio"),
		release: string(release),
		modules: set,
	}, nil
}

func (b *builder) makeKernel(ctx context.Context, dir, series string) error {
	if err := b.update(ctx); err != nil {
		return err
	}
	image, err := findImage(ctx, series)
	if err != nil {
		return err
	}
	release := strings.TrimPrefix(image, "linux-image-")
	number, err := version(ctx, image)
	if err != nil {
		return err
	}
	root := filepath.Join(dir, "root")
	if err := b.unpack(ctx, root, image+"="+number); err != nil {
		return err
	}
	compressed := filepath.Join(root, "boot", "vmlinuz-"+release)
	if err := decompressKernel(ctx, compressed, filepath.Join(dir, "vmlinux")); err != nil {
		return err
	}
	set := filepath.Join(dir, "modules")
	if err := os.Mkdir(set, 0o755); err != nil {
		return err
	}
	siw, err := b.buildSIW(ctx, root, series, release, number)
	if err != nil {
		return fmt.Errorf("build siw: %w", err)
	}
	if err := collectModules(ctx, root, release, siw, set); err != nil {
		return err
	}
	if err := packModules(set, release, filepath.Join(dir, "modules.cpio")); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "release"), []byte(release), 0o644); err != nil {
		return err
	}
	b.log("kernel %s, version %s", release, number)
	return os.RemoveAll(root)
}

// findImage returns the name of the series' newest kernel package.
func findImage(ctx context.Context, series string) (string, error) {
	var err error
	for _, meta := range []string{"linux-image-" + series + "-amd64", "linux-image-amd64"} {
		var name string
		if name, err = dependency(ctx, meta, "linux-image-"+series+"."); err == nil {
			return name, nil
		}
	}
	return "", err
}

// decompressKernel writes the ELF file within a bzImage. Where it lies, the header
// says: Documentation/arch/x86/boot.rst, fields setup_sects, payload_offset and
// payload_length. The last four bytes of the payload are the size of what comes
// out.
func decompressKernel(ctx context.Context, from, to string) error {
	image, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if len(image) < 0x250 || string(image[0x202:0x206]) != "HdrS" {
		return fmt.Errorf("%s is no bzImage", from)
	}
	begin := (int64(image[0x1f1])+1)*512 + int64(binary.LittleEndian.Uint32(image[0x248:]))
	end := begin + int64(binary.LittleEndian.Uint32(image[0x24c:])) - 4
	if begin >= end || end > int64(len(image)) {
		return fmt.Errorf("%s: its payload lies from %d to %d in %d bytes", from, begin, end, len(image))
	}
	payload := image[begin:end]
	var suffix, program string
	switch {
	case strings.HasPrefix(string(payload), "\xfd7zXZ\x00"):
		suffix, program = ".xz", "xz"
	case strings.HasPrefix(string(payload), "\x28\xb5\x2f\xfd"):
		suffix, program = ".zst", "zstd"
	default:
		return fmt.Errorf("%s: its compression begins with % x, which is none we know", from, payload[:4])
	}
	if err := os.WriteFile(to+suffix, payload, 0o644); err != nil {
		return err
	}
	_, err = command(ctx, "", program, "-d", "-q", "-f", to+suffix)
	os.Remove(to + suffix)
	return err
}

// collectModules copies the modules of a guest, and all that they need, into dir.
func collectModules(ctx context.Context, root, release, siw, dir string) error {
	base := filepath.Join(root, "lib", "modules", release)
	if !exists(base) {
		base = filepath.Join(root, "usr", "lib", "modules", release)
	}
	within, err := builtin(filepath.Join(base, "modules.builtin"))
	if err != nil {
		return err
	}
	files := map[string]string{"siw": siw}
	err = filepath.WalkDir(filepath.Join(base, "kernel"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && strings.Contains(entry.Name(), ".ko") && moduleName(path) != "siw" {
			files[moduleName(path)] = path
		}
		return err
	})
	if err != nil {
		return err
	}
	wanted := slices.Concat(modules, pairModules, moreModules)
	for i := 0; i < len(wanted); i++ { // it grows by what the modules need
		name := wanted[i]
		target := filepath.Join(dir, name+".ko")
		if within[name] || exists(target) {
			continue
		}
		file, ok := files[name]
		if !ok {
			return fmt.Errorf("kernel %s has no module %s", release, name)
		}
		if err := copyModule(ctx, file, target); err != nil {
			return err
		}
		m, err := readModule(target)
		if err != nil {
			return err
		}
		wanted = append(wanted, m.depends...)
	}
	return nil
}

// copyModule copies a module and decompresses it, which costs less here than in
// the guest.
func copyModule(ctx context.Context, from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	switch filepath.Ext(from) {
	case ".ko":
		return os.WriteFile(to, content, 0o644)
	case ".xz":
		if err := os.WriteFile(to+".xz", content, 0o644); err != nil {
			return err
		}
		_, err := command(ctx, "", "xz", "-d", to+".xz")
		return err
	}
	return fmt.Errorf("kernel module %s: its compression is none we know", from)
}

// packModules writes the archive with the modules and with what modprobe needs to
// find them.
func packModules(dir, release, archive string) error {
	set, err := readModules(dir)
	if err != nil {
		return err
	}
	deps, err := set.depFile()
	if err != nil {
		return err
	}
	file, err := os.Create(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	out := cpio.NewWriter(file)
	base := moduleDirectory(release)
	out.Text(base+"/modules.dep", 0o644, deps)
	out.Text(base+"/modules.alias", 0o644, set.aliasFile())
	for _, name := range set.names() {
		if err := addFile(out, set[name].file, base+"/"+name+".ko"); err != nil {
			return err
		}
	}
	if err := out.Close(); err != nil {
		return err
	}
	return file.Close()
}

// moduleDirectory is where the modules lie in the guest.
func moduleDirectory(release string) string { return "/usr/lib/modules/" + release }

// bootOrder returns the modules to load at boot, less those that are in the kernel
// itself.
func (k kernel) bootOrder(names ...string) ([]string, error) {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		_, ok := k.modules[name]
		return !ok // makeKernel has seen that it is built in
	})
	return k.modules.closure(names...)
}
