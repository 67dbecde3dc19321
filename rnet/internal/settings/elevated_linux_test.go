package settings

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed-b9b531af/ramjet/internal/skip"
)

// saysVariable has the test program say what it takes from the environment.
const saysVariable = "SETTINGS_TEST_SAYS"

func TestMain(m *testing.M) {
	if os.Getenv(saysVariable) != "" {
		env, err := Environment()
		fmt.Printf("%q %q %v", env.Dir, env.KeyFile, err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// netBindService is the extended attribute of a file whose programs have that capability
// (struct vfs_cap_data of linux/capability.h, revision 2).
func netBindService() []byte {
	var data [20]byte
	binary.LittleEndian.PutUint32(data[:], 0x02000001) // and they have it at once
	binary.LittleEndian.PutUint32(data[4:], 1<<unix.CAP_NET_BIND_SERVICE)
	return data[:]
}

// Who starts a program with more rights than his own chooses neither whom it meets nor what
// it reads.
func TestProgramsWithRightsOfTheirOwnTakeNoFilesFromTheEnvironment(t *testing.T) {
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "elevated") // where another user finds it
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	const caller, owner = 65001, 65002
	for _, c := range []struct {
		what    string
		elevate func(program string) error
		want    string
	}{
		{"as any other", func(string) error { return nil }, `"/run/meet" "/run/key" <nil>`},
		{"with set-user-ID", func(program string) error {
			return errors.Join(os.Chown(program, owner, owner), os.Chmod(program, 0o755|os.ModeSetuid))
		}, `"" "" <nil>`},
		{"with a capability", func(program string) error {
			return unix.Setxattr(program, "security.capability", netBindService(), 0)
		}, `"" "" <nil>`},
	} {
		t.Run(c.what, func(t *testing.T) {
			program := filepath.Join(dir, "program")
			os.Remove(program)
			require.NoError(t, os.WriteFile(program, self, 0o755))
			require.NoError(t, os.Chmod(program, 0o755)) // whatever the umask is
			if err := c.elevate(program); err != nil {
				skip.Because(t, err)
			}
			cmd := exec.Command(program)
			cmd.Env = []string{saysVariable + "=yes", "RNET_DIR=/run/meet", "RNET_KEY_FILE=/run/key"}
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: caller, Gid: caller}}
			out, err := cmd.CombinedOutput()
			if errors.Is(err, syscall.EPERM) {
				skip.Because(t, err)
			}
			require.NoError(t, err, string(out))
			require.Equal(t, c.want, string(bytes.TrimSpace(out)))
		})
	}
}

func TestAPipeToWhichNobodyWritesIsNoKey(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "key")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	_, err := readKey(pipe)
	require.ErrorContains(t, err, "is no regular file")
}
