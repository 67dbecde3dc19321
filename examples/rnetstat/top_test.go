package main

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/rnet"
	"github.com/seed-b9b531af/ramjet/rnet/inspect"
)

// busyLook has processes with a session each, of which the first was the busiest in the
// last second, and one that does not answer.
func busyLook(after time.Duration, processes int) *look {
	at := netip.MustParseAddrPort("127.0.0.1:9000")
	begin := time.Unix(1_000_000, 0)
	l := &look{Time: begin.Add(after), Processes: []process{{PID: 99, Error: "it is stopped"}}}
	for i := range processes {
		c := rnet.Counters{BytesIn: uint64(after.Seconds()) * uint64(processes-i) << 10, CreditStalls: uint64(i)}
		l.Processes = append(l.Processes, process{PID: 100 + i, Snapshot: &inspect.Snapshot{
			Time: l.Time, PID: 100 + i, Program: fmt.Sprintf("server%d", i),
			Stats:   rnet.Stats{Sessions: []rnet.SessionStats{{Number: 1, Device: "soft0", LocalAddr: at, RemoteAddr: at, Opened: begin, Streams: 2, Counters: c}}},
			Streams: []rnet.StreamStats{{Session: 1, ID: 1, LocalAddr: at, RemoteAddr: at, BytesIn: c.BytesIn}, {Session: 1, ID: 2, LocalAddr: at, RemoteAddr: at}},
		}})
	}
	return l
}

func topAt(width, height, processes int) *top {
	t := &top{width: width, height: height, sorted: byTraffic}
	t.take(busyLook(0, processes))
	t.take(busyLook(time.Second, processes))
	return t
}

// pids returns the first cells of the lines below the titles.
func pids(page string) (list []string) {
	_, rows, _ := strings.Cut(page, "PID")
	for _, row := range strings.Split(rows, "\n")[1:] {
		if cells := strings.Fields(row); len(cells) > 2 && len(cells[0]) == 3 {
			list = append(list, cells[0])
		}
	}
	return list
}

func press(t *top, keys string) (quit bool) {
	for _, k := range keys {
		quit = quit || t.key(k)
	}
	return quit
}

func TestTheScreenFitsTheTerminal(t *testing.T) {
	for _, width := range []int{20, 40, 80, 100, 200} {
		for _, height := range []int{5, 24, 60} {
			for _, keys := range []string{"", "s"} {
				page := topAt(width, height, 30)
				press(page, keys)
				rows := strings.Split(page.draw(), "\n")
				require.Len(t, rows, height)
				for _, row := range rows {
					require.LessOrEqual(t, utf8.RuneCountInString(row), width)
				}
			}
		}
	}
	wide, narrow := topAt(200, 24, 3).draw(), topAt(80, 24, 3).draw()
	require.Contains(t, wide, "SPILL")
	require.NotContains(t, narrow, "SPILL")
	for _, title := range []string{"PID", "REMOTE", "IN/s", "OUT/s"} {
		require.Contains(t, narrow, title)
	}
	require.Contains(t, topAt(200, 10, 30).draw(), "25 more below")
}

func TestASessionIsOneLineAndTheBusiestComesFirst(t *testing.T) {
	page := topAt(200, 24, 3).draw()
	require.Equal(t, []string{"100", "101", "102"}, pids(page))
	require.Contains(t, page, "4 processes, 3 sessions, 6 streams  in 6.0K/s  out 0/s")
	require.Contains(t, page, "it is stopped")
	require.Equal(t, 1, strings.Count(page, "server0"))
}

func TestKeysSortFilterPauseAndEnd(t *testing.T) {
	top := topAt(200, 24, 3)
	press(top, "r")
	require.Equal(t, []string{"102", "101", "100"}, pids(top.draw()))
	press(top, "r")

	stall := 0
	for i, c := range sessionColumns {
		if c.title == "STALL" {
			stall = i
		}
	}
	press(top, strings.Repeat(">", stall+1))
	require.Contains(t, top.draw(), "by STALL")
	require.Equal(t, []string{"102", "101", "100"}, pids(top.draw()))
	press(top, strings.Repeat(">", 99))
	press(top, strings.Repeat("<", 99))
	require.Contains(t, top.draw(), "by traffic")

	press(top, "/server12\x7f")
	require.Contains(t, top.draw(), "filter: server1_")
	press(top, "\n")
	require.Equal(t, []string{"101"}, pids(top.draw()))
	require.False(t, press(top, "/q"), "a letter of the filter")
	press(top, "\x1b")
	require.Equal(t, []string{"100", "101", "102"}, pids(top.draw()))

	press(top, " ")
	top.take(busyLook(time.Minute, 1))
	require.Contains(t, top.draw(), "3 sessions")
	require.Contains(t, top.draw(), "PAUSED")
	press(top, " ")
	top.take(busyLook(time.Minute, 1))
	require.Contains(t, top.draw(), "1 sessions")

	press(top, "s")
	require.Contains(t, top.draw(), "WINDOW")
	require.Len(t, pids(top.draw()), 2)
	require.True(t, top.key('q'))
}

func TestAProcessThatOnlyListensHasALine(t *testing.T) {
	top := topAt(120, 24, 0)
	top.now.Processes = append(top.now.Processes, process{PID: 7, Snapshot: &inspect.Snapshot{
		PID: 7, Program: "idle\x1b[2J",
		Stats: rnet.Stats{Listeners: []rnet.ListenerStats{{Addr: netip.MustParseAddrPort("127.0.0.1:7777")}}},
	}})
	require.Contains(t, top.draw(), "127.0.0.1:7777")
	require.Contains(t, top.draw(), "listens")
	require.NotContains(t, top.draw(), "\x1b")
	for range sessionColumns { // lines of all lengths can be compared
		top.key('>')
		top.draw()
	}
}
