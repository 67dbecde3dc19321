// Command table writes the table of docs/verbs.md: what runs where. It asks the
// software HCA here; what other devices said is recorded in devices.json, and is
// replaced by
//
//	go run -exec "GUEST -kernel 6.1" ./verbs/internal/abilities/table \
//		-probe rxe0 -as "rxe, Linux 6.1" | tee /tmp/log
//	go run ./verbs/internal/abilities/table -record /tmp/log
//
// with the guest of CONTRIBUTING.md, or by what a test that finds the record stale has
// printed. For a card the first command runs on its machine, without the guest:
//
//	RAMJET_EXPERIMENTAL=DRIVER go run ./verbs/internal/abilities/table \
//		-probe DEVICE -as "irdma, Linux 6.12" | tee /tmp/log
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/internal/abilities"
	_ "github.com/seed-b9b531af/ramjet/verbs/soft"
	_ "github.com/seed-b9b531af/ramjet/verbs/uverbs"
)

const (
	document = "docs/verbs.md"
	records  = "verbs/internal/abilities/devices.json"
)

func main() {
	probe := flag.String("probe", "", "print what this `device` can do, as a line to be recorded")
	as := flag.String("as", "", "`name` of that column")
	record := flag.String("record", "", "record the lines of this `file` that -probe has printed")
	flag.Parse()
	err := run(*probe, *as, *record)
	if err != nil {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

func run(probe, as, record string) error {
	if probe != "" {
		d, err := of(probe, as)
		if err != nil {
			return err
		}
		fmt.Println(d.Line())
		return nil
	}
	devices, err := abilities.Recorded()
	if err != nil {
		return err
	}
	if record != "" {
		if devices, err = take(devices, record); err != nil {
			return err
		}
	}
	soft, err := of("soft0", "soft")
	if err != nil {
		return err
	}
	devices = put(devices, soft)
	b, err := abilities.Encode(devices)
	if err != nil {
		return err
	}
	if err := os.WriteFile(records, b, 0o644); err != nil {
		return err
	}
	doc, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	if doc, err = abilities.Put(doc, abilities.Table(devices)); err != nil {
		return err
	}
	return os.WriteFile(document, doc, 0o644)
}

func of(device, name string) (abilities.Device, error) {
	ctx, err := verbs.Open(device)
	if err != nil {
		return abilities.Device{}, err
	}
	defer ctx.Close()
	list, err := abilities.Of(ctx)
	return abilities.Device{Name: name, Abilities: list}, err
}

// take records what a log has.
func take(devices []abilities.Device, name string) ([]abilities.Device, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		_, line, ok := strings.Cut(lines.Text(), abilities.LinePrefix)
		if !ok {
			continue
		}
		var d abilities.Device
		if err := json.Unmarshal([]byte(strings.TrimSpace(line)), &d); err != nil {
			return nil, err
		}
		devices = put(devices, d)
		found++
	}
	if found == 0 {
		return nil, fmt.Errorf("%s has no line with %q", name, abilities.LinePrefix)
	}
	return devices, nil
}

func put(devices []abilities.Device, d abilities.Device) []abilities.Device {
	for i := range devices {
		if devices[i].Name == d.Name {
			devices[i] = d
			return devices
		}
	}
	return slices.Concat(devices, []abilities.Device{d})
}
