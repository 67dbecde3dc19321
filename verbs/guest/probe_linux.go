package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// probeLimit is how long a kernel may take to start under KVM. It takes less than
// a second where KVM is real; there are machines where it begins and goes no
// further.
const probeLimit = 4 * time.Second

// probe returns kvm where a guest runs with it, and tcg elsewhere. What it finds
// holds until the host boots again.
func (b *builder) probe(ctx context.Context, k kernel) (string, error) {
	if file, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err != nil {
		return "tcg", nil
	} else {
		file.Close()
	}
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	dir, err := b.entry(ctx, "accel-"+recipeKey(string(id), k.release), func(dir string) error {
		accel := "tcg"
		if startsWithKVM(ctx, k) {
			accel = "kvm"
		}
		if ctx.Err() != nil { // it has not been found out
			return ctx.Err()
		}
		b.log("guests run with %s", accel)
		return os.WriteFile(filepath.Join(dir, "accel"), []byte(accel), 0o644)
	})
	if err != nil {
		return "", err
	}
	accel, err := os.ReadFile(filepath.Join(dir, "accel"))
	return string(accel), err
}

// startsWithKVM boots the kernel without a root file system: it comes as far as the
// panic that says so, or does not.
func startsWithKVM(ctx context.Context, k kernel) bool {
	m, err := boot(plan{kernel: k.image, memory: 256, cpus: 1, accel: "kvm"})
	if err != nil {
		return false
	}
	defer m.kill()
	select {
	case <-m.ended:
	case <-time.After(probeLimit):
	case <-ctx.Done():
	}
	return strings.Contains(m.console.String(), "Unable to mount root fs")
}
