package foreign

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
)

// Find returns where a program is, or an error that names the Debian package
// that has it. PostgreSQL's programs lie outside of PATH on Debian.
func Find(program, pkg string) (path string, err error) {
	if path, err = exec.LookPath(program); err == nil {
		return path, nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + program)
	if len(found) == 0 {
		return "", fmt.Errorf("%s is not installed (apt-get install %s)", program, pkg)
	}
	return slices.Max(found), nil
}
