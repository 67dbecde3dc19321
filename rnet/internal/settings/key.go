package settings

import (
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/seed-b9b531af/ramjet/rcm/softcm"
)

// maxKey is how long a key in a file is at most: who has named another file is told so.
const maxKey = 4096

// environmentKey is the key in the file that the environment names, read once.
var environmentKey = sync.OnceValues(func() ([]byte, error) {
	env, _ := Environment() // whose error has been looked at
	key, err := readKey(env.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("rnet: RNET_KEY_FILE: %w", err)
	}
	return key, nil
})

// readKey reads a key: all bytes of a file.
func readKey(name string) ([]byte, error) {
	file, err := os.OpenFile(name, os.O_RDONLY|withoutWait, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat() // of what is open: the name may lead elsewhere meanwhile
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // which might never end
		return nil, fmt.Errorf("%s is no regular file", name)
	}
	key, err := io.ReadAll(io.LimitReader(file, maxKey+1))
	switch {
	case err != nil:
		return nil, err
	case len(key) > maxKey:
		return nil, fmt.Errorf("%s has more than %d bytes", name, maxKey)
	case len(key) < softcm.MinKey:
		return nil, fmt.Errorf("%s: %w", name, errShortKey(len(key)))
	}
	return key, nil
}

func errShortKey(n int) error {
	return fmt.Errorf("key of %d bytes, want %d at least, random ones", n, softcm.MinKey)
}
