// Figures writes the measured figures into the documents, so that all of them show the
// same run. What the benchmark printed is kept in files beside the documents:
//
//	go run ./bench -svg docs/bench.svg >docs/bench.txt
//	go run ./bench programs >docs/programs.txt
//	go run ./docs/figures
//
// Each part of a document that is written here stands between two comments, "figures
// NAME" and "end of figures".
package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

func main() {
	if err := update("docs"); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

// documents that show figures, from the folder of the documents.
var documents = []string{"../README.md", "performance.md"}

func update(docs string) error {
	parts, err := readParts(docs)
	if err != nil {
		return err
	}
	for _, name := range documents {
		path := filepath.Join(docs, name)
		old, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text, err := replace(string(old), parts)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if text == string(old) {
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// readParts makes the parts of documents, by name.
func readParts(docs string) (map[string]string, error) {
	bench, err := os.ReadFile(filepath.Join(docs, "bench.txt"))
	if err != nil {
		return nil, err
	}
	programs, err := os.ReadFile(filepath.Join(docs, "programs.txt"))
	if err != nil {
		return nil, err
	}
	transports, err := transportTable(string(bench))
	if err != nil {
		return nil, fmt.Errorf("bench.txt: %w", err)
	}
	inPrograms, err := programTable(string(programs))
	if err != nil {
		return nil, fmt.Errorf("programs.txt: %w", err)
	}
	return map[string]string{
		"transports": transports,
		"programs":   inPrograms,
		"bench":      "```\n" + string(bench) + "```\n",
	}, nil
}

var part = regexp.MustCompile(`(?s)(<!-- figures (\w+)[^>]*-->\n).*?(<!-- end of figures -->)`)

// replace puts the parts between their comments.
func replace(document string, parts map[string]string) (string, error) {
	var err error
	if !part.MatchString(document) {
		return "", errors.New("no place for figures")
	}
	text := part.ReplaceAllStringFunc(document, func(old string) string {
		m := part.FindStringSubmatch(old)
		content, ok := parts[m[2]]
		if !ok {
			err = fmt.Errorf("no figures are called %s", m[2])
		}
		return m[1] + content + m[3]
	})
	return text, err
}

// gap stands between the columns of what the benchmark prints.
var gap = regexp.MustCompile(` {2,}`)

// transportRows are what the README shows of the page of transports: the test, one
// figure of it, and what the README calls it.
var transportRows = [][3]string{
	{"round trip, 64 B", "p50", "round trip, 64 B, p50"},
	{"round trip, 64 B", "p99", "round trip, 64 B, p99"},
	{"round trip, 4 KiB", "p50", "round trip, 4 KiB, p50"},
	{"round trip, 64 B, nobody polls", "p50", "round trip, 64 B, nobody polls, p50"},
	{"throughput, 1 MiB", "per second", "throughput, writes of 1 MiB"},
	{"throughput, 1 MiB", "CPU per GiB", "CPU time per GiB, both ends"},
	{"one-way messages, 64 B", "per second", "one-way messages of 64 B"},
	{"requests, 64 B, 1 connection", "per second", "requests, 1 connection"},
	{"requests, 64 B, 64 connections", "per second", "requests, 64 connections"},
	{"requests, 64 B, 1000 connections", "per second", "requests, 1000 connections"},
	{"requests, 64 B, 1000 connections", "CPU each", "CPU time per request, both ends"},
	{"gnet echo, 64 B, 1 connection", "per second", "gnet event handlers, 1 connection"},
	{"gnet echo, 64 B, 1000 connections", "per second", "gnet event handlers, 1000 connections"},
	{"connections opened, 1 at a time", "per second", "connections opened, 1 at a time"},
	{"connections opened, 16 at a time", "per second", "connections opened, 16 at a time"},
	{"idle connection, 1000 open", "Go heap alone", "idle connection, Go heap, both ends"},
}

// transportTable makes the README's table of what `go run ./bench` printed.
func transportTable(printed string) (string, error) {
	machine, how, body, err := head(printed)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s; %s.\n\n", machine, how)
	b.WriteString("| | TCP loopback | Unix socket | ramjet | vs TCP |\n|---|---|---|---|---|\n")
	figures := make(map[[2]string][]string)
	test := ""
	for _, line := range body {
		cells := gap.Split(strings.TrimSpace(line), -1)
		if !strings.HasPrefix(line, " ") {
			test, cells = cells[0], cells[1:]
		}
		if len(cells) == 6 {
			figures[[2]string{test, cells[0]}] = cells[1:]
		}
	}
	for _, row := range transportRows {
		f, ok := figures[[2]string{row[0], row[1]}]
		if !ok {
			return "", fmt.Errorf("there is no %s of %q", row[1], row[0])
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", row[2], f[0], f[1], f[3], f[4])
	}
	// What somebody has added by hand: rows that are of other runs.
	for _, line := range body {
		if strings.HasPrefix(line, "The rows of ") {
			fmt.Fprintf(&b, "\n%s\n", line)
		}
	}
	return b.String(), nil
}

// programRows are the tests of the page of programs that the README shows.
var programRows = []string{
	"HTTP/1.1, 1 call",
	"HTTP/1.1, 1 call, others compute",
	"HTTP/1.1, 1 call, one CPU",
	"HTTP/1.1, 1 call, paced 1000/s",
	"HTTP/1.1, 64 calls",
	"HTTP/2 over TLS, 1 call",
	"HTTP/2 over TLS, 64 calls",
	"net/rpc, 1 call",
	"net/rpc, 64 calls",
	"reader goroutine with a channel, 64 calls",
	"proxy hop, 64 calls",
	"proxy hop, 64 calls, paced 20000/s",
	"echo, 64 calls, paced 20000/s",
	"echo, 20 client processes",
	"echo, 100 client processes",
}

var losses = regexp.MustCompile(`(?m)^ramjet is worse than TCP \(<\) in (\d+) of (\d+) figures, in (\d+) of (\d+) tests\.$`)

// programTable makes the README's table of what `go run ./bench programs` printed.
func programTable(printed string) (string, error) {
	machine, how, body, err := head(printed)
	if err != nil {
		return "", err
	}
	figures := make(map[string][]string)
	for _, line := range body {
		cells := gap.Split(line, -1)
		if len(cells) == 16 { // five figures of three transports
			figures[cells[0]] = cells[1:]
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s; %s.\n\n", machine, how)
	b.WriteString("| | TCP | | Unix socket | ramjet | | | |\n|---|---|---|---|---|---|---|---|\n")
	b.WriteString("| | *rate* | *p50* | *rate* | *rate* | *p50* | *p99* | *CPU* |\n")
	for _, test := range programRows {
		f, ok := figures[test]
		if !ok {
			return "", fmt.Errorf("there is no %q", test)
		}
		row := []string{test, f[0], f[3], f[1], f[2], f[5], f[8], f[14]}
		for i, cell := range row {
			if cell, worse := strings.CutSuffix(cell, "<"); worse {
				row[i] = "**" + cell + "x**"
			}
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
	}
	m := losses.FindStringSubmatch(printed)
	if m == nil {
		return "", errors.New("it does not say in how many figures ramjet is worse than TCP")
	}
	fmt.Fprintf(&b, "\nOf all figures in [programs.txt](docs/programs.txt) ramjet is worse than TCP in %s of %s, in %s of %s tests.", m[1], m[2], m[3], m[4])
	worst, err := worst(body)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(&b, " The worst is %s.\n", worst)
	return b.String(), nil
}

// worst says which of ramjet's figures is the least beside TCP's.
func worst(body []string) (string, error) {
	least, found := math.Inf(1), ""
	for _, line := range body {
		cells := gap.Split(line, -1)
		if len(cells) != 16 {
			continue
		}
		for i, name := range []string{"rate", "p50", "p99", "p99.9", "CPU time"} {
			times := strings.TrimRight(cells[3*i+3], "x<")
			value, err := strconv.ParseFloat(times, 64)
			if err != nil {
				continue // the heading
			}
			if value < least {
				least, found = value, fmt.Sprintf("a %s of %sx (%s)", name, times, cells[0])
			}
		}
	}
	if found == "" {
		return "", errors.New("it has no figures of ramjet")
	}
	return found, nil
}

// head returns the two lines that say where and how was measured, and the lines of the
// tables.
func head(printed string) (machine, how string, body []string, err error) {
	// What a user copied from a terminal may have the progress before it.
	start := regexp.MustCompile(`(?m)^\w+, \d+ CPUs \(`).FindStringIndex(printed)
	if start == nil {
		return "", "", nil, errors.New("no line says what machine it was")
	}
	if strings.Contains(printed, "FELL BACK TO TCP") || strings.Contains(printed, " failures:\n") {
		return "", "", nil, errors.New("connections fell back to TCP, or operations failed: run it again")
	}
	lines := strings.Split(printed[start[0]:], "\n")
	if len(lines) < 3 {
		return "", "", nil, errors.New("there are no tables")
	}
	return lines[0], lines[1], lines[2:], nil
}
