package verbsperf

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/internal/testhost"
	"github.com/seed-b9b531af/ramjet/rcm"
)

// wirePort is where the second machine of two serves.
const wirePort = "18601"

// TestMain lets the test program be the server that the client starts, and that of the
// second machine of two.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Page {
		Main(os.Args[2:])
	}
	if testhost.PlaysPeer() {
		// ended by the machine
		Main([]string{"-listen", ":" + wirePort, "-device", testhost.Devices()[0].Name})
	}
	flag.Parse()
	os.Exit(m.Run())
}

// devices are those of the kernel that the machine has for tests, elsewhere the software HCA.
func devices() (list []string) {
	for _, d := range testhost.Devices() {
		list = append(list, d.Name)
	}
	if list == nil {
		return []string{"soft0"}
	}
	return list
}

// few is a short run of all tests, of two sizes.
var few = []string{"-n", "30", "-sizes", "1,5000", "-json"}

// requireAll is about the lines of such a run.
func requireAll(t *testing.T, args ...string) {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, Run(t.Context(), slices.Concat(few, args), &out, os.Stderr))
	var lines []map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &lines))
	want := 4*2*2 + 2
	if slices.Contains(args, "siw0") { // has neither immediates nor atomics
		want = 3 * 2 * 2
	}
	require.Len(t, lines, want)
	for _, line := range lines {
		column := "BW average[MB/sec]"
		if strings.HasSuffix(line["test"].(string), "_lat") {
			column = "t_typical[usec]"
		}
		require.Greater(t, line[column], 0.0, "%v", line)
	}
}

func TestEveryTestRuns(t *testing.T) {
	for _, device := range devices() {
		modes := map[string][]string{
			"one QP":         nil,
			"several":        {"-qps", "3", "-depth", "10", "-cq-mod", "4"},
			"both ways":      {"-bidirectional", "-qps", "2"},
			"events, inline": {"-events", "-inline", "64", "-depth", "8"},
			"by rcm":         {"-rcm", "-qps", "2", "-depth", "8"},
		}
		switch device {
		case "mlx5_0":
			modes["by GID"] = []string{"-gid", "0"} // on InfiniBand it goes by LID otherwise
		case "siw0":
			modes = map[string][]string{
				"by rcm": modes["by rcm"],
				"events": {"-rcm", "-events", "-inline", "64", "-bidirectional"},
			}
		}
		for name, more := range modes {
			t.Run(device+"/"+name, func(t *testing.T) {
				requireAll(t, append([]string{"-device", device}, more...)...)
			})
		}
	}
}

// The same between two machines, the second of which serves.
func TestWire(t *testing.T) {
	if testhost.Peer() == "" {
		t.Skip(testhost.PeerVariable + " is not set: run this on two hosts, go test -exec 'guest -pair -devices rxe0'")
	}
	server := net.JoinHostPort(testhost.Peer(), wirePort)
	// until the other machine is up
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		c, err := net.DialTimeout("tcp", server, 10*time.Second)
		if err == nil {
			require.NoError(t, c.Close())
			break
		}
		require.True(t, time.Now().Before(end), "%v", err)
	}
	device := testhost.Devices()[0].Name
	for name, more := range map[string][]string{"exchange": {"-bidirectional"}, "by rcm": {"-rcm", "-events", "-qps", "2", "-depth", "8"}} {
		if device == "siw0" && name == "exchange" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			requireAll(t, append([]string{"-device", device, "-dial", server}, more...)...)
		})
	}
}

func TestListsAreMeasuredInAllCombinations(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, Run(t.Context(), []string{
		"-n", "5", "-json", "-test", "send_lat,write_bw,read_bw", "-sizes", "1,64", "-qps", "1,2", "-depth", "2,4", "-inline", "0,64",
	}, &out, os.Stderr))
	var lines []map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &lines))
	seen := map[string]int{}
	for _, line := range lines {
		seen[line["test"].(string)]++
		for other := range line {
			if strings.Contains(other, "[") {
				delete(line, other) // a figure
			}
		}
	}
	// A latency has one QP and no depth, and a READ is never inline.
	require.Equal(t, map[string]int{"send_lat": 2 * 2, "write_bw": 2 * 2 * 2 * 2, "read_bw": 2 * 2 * 2}, seen)
	for i, line := range lines {
		require.NotContains(t, lines[i+1:], line)
	}
}

func TestWhatTheDeviceHasNotIsRefusedBeforeAnythingRuns(t *testing.T) {
	for want, args := range map[string][]string{
		"-depth 70000: soft0 has no more than 65536 requests in a queue":             {"-depth", "1,70000"},
		"-depth times -qps, 6400000: soft0 has no more than 4194304 entries of a CQ": {"-depth", "6400", "-qps", "1000"},
		"soft0 has no GID in row 7":             {"-gid", "7"},
		"bytes inline":                          {"-inline", "1073741824"},
		`"1025" is not a number from 1 to 1024`: {"-qps", "1025"},
		`"-1" is not a number from 0 to`:        {"-inline", "-1"},
		"-n 16777217 is not from 1 to 16777216": {"-n", "16777217"},
		"-listen and -dial exclude each other":  {"-listen", "a", "-dial", "b"},
	} {
		var out bytes.Buffer
		require.ErrorContains(t, Run(t.Context(), args, &out, &bytes.Buffer{}), want)
		require.Empty(t, out.String())
	}
}

func TestADrawingHasAMarkForEachLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out.svg")
	var out bytes.Buffer
	require.NoError(t, Run(t.Context(), []string{
		"-n", "5", "-test", "send_lat,write_bw", "-sizes", "8,2048", "-qps", "1,2", "-depth", "4", "-svg", file,
	}, &out, os.Stderr))
	require.Contains(t, out.String(), "write_bw: 2 QP, depth 4, polling\n", "the tables are printed too")
	drawing, err := os.ReadFile(file)
	require.NoError(t, err)
	require.True(t, bytes.HasPrefix(drawing, []byte("<svg")))
	marks := 0
	for d := xml.NewDecoder(bytes.NewReader(drawing)); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		if start, ok := token.(xml.StartElement); ok && start.Name.Local == "circle" {
			marks++
		}
	}
	require.Equal(t, 2+2*2, marks)
	for _, want := range []string{"soft0", ">send_lat: polling<", ">write_bw: 1 QP, depth 4, polling<", ">2 KiB<", " us<", " MB/s<"} {
		require.Contains(t, string(drawing), want)
	}
}

// Whoever reaches the server by TCP can say what he likes.
func TestAServerOutlivesItsClients(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	said, announced := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, []string{"-listen", "127.0.0.1:0"}, announced, io.Discard) }()
	line, err := bufio.NewReader(said).ReadString('\n') // ends with the server's announcement
	require.NoError(t, err)
	addr := strings.TrimSpace(strings.TrimPrefix(line, announcement))
	good := spec{Test: "send_lat", Size: 8, Iterations: 1, QPs: 1, Depth: 2, Mod: 1}
	for name, wish := range map[string]func(*spec){
		"no such test":    func(s *spec) { s.Test = "x" },
		"no such size":    func(s *spec) { s.Size = maxSize + 1 },
		"endless":         func(s *spec) { s.Iterations = maxIterations + 1 },
		"negative":        func(s *spec) { s.Depth = -1 },
		"none signaled":   func(s *spec) { s.Mod = s.Depth + 1 },
		"no modulus":      func(s *spec) { s.Mod = 0 },
		"many QPs":        func(s *spec) { s.QPs = maxQPs + 1 },
		"negative inline": func(s *spec) { s.Inline = -1 },
	} {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		wanted := good
		wish(&wanted)
		require.NoError(t, json.NewEncoder(c).Encode(wanted))
		_, err = io.Copy(io.Discard, c) // ends with the server's hang-up
		require.NoError(t, err, name)
		require.NoError(t, c.Close())
	}
	for _, words := range []string{"", "no JSON", `{"Test":"send_lat","Size":8,"Iterations":1,"QPs":1,"Depth":2,"Mod":1}{"Failed":"no"}`} {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		_, err = io.WriteString(c, words)
		require.NoError(t, err)
		require.NoError(t, c.(*net.TCPConn).CloseWrite())
		_, err = io.Copy(io.Discard, c) // ends with the server's hang-up
		require.NoError(t, err, words)
		require.NoError(t, c.Close())
	}
	require.NoError(t, Run(t.Context(), []string{"-dial", addr, "-n", "5", "-test", "send_lat", "-sizes", "8", "-rcm"}, io.Discard, os.Stderr))
	stop()
	require.NoError(t, <-ended)
}

// A QP that somebody else connects, who does not know the token, is not taken
// for one of the client.
func TestStrangersAreNotConnected(t *testing.T) {
	dev, at, err := open(&options{Device: "soft0", GID: -1})
	require.NoError(t, err)
	defer dev.Close()
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	sp := spec{Test: "send_lat", Size: 8, Iterations: 1, QPs: 1, Depth: 2, Mod: 1, CM: true}
	ends := make([]*side, 3) // the server, the client, a stranger
	for i := range ends {
		ends[i], err = newSide(t.Context(), dev, at, sp)
		require.NoError(t, err)
		defer ends[i].close()
	}
	m := meeting{ctx: t.Context(), dev: dev, place: at, control: newControl(localPipe{ours}), server: true}
	from, err := m.listen()
	require.NoError(t, err)
	defer from.Close()
	accepted := make(chan error, 1)
	go func() { accepted <- from.accept(t.Context(), ends[0]) }()
	for i, token := range [][]byte{1: from.token, 2: make([]byte, tokenSize)} {
		if i > 0 {
			ends[i].peer = hello{Listener: from.Addr(), Token: token}
		}
	}
	var rejected *rcm.RejectedError
	require.ErrorAs(t, ends[2].dial(t.Context()), &rejected)
	require.NoError(t, ends[1].dial(t.Context()))
	require.NoError(t, <-accepted) // ended by the client
	require.Len(t, ends[0].conns, 1)
}

// localPipe is a pipe with an address of this host.
type localPipe struct{ net.Conn }

func (localPipe) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func TestTheTableHasTheNamesOfPerftest(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, Run(t.Context(), []string{"-n", "10", "-sizes", "8", "-test", "write_imm_lat,read_bw"}, &out, os.Stderr))
	for _, want := range []string{
		"write_imm_lat: polling", "#bytes", "#iterations", "t_min[usec]", "t_max[usec]", "t_typical[usec]", "t_avg[usec]", "t_stdev[usec]",
		"99% percentile[usec]", "99.9% percentile[usec]", "read_bw: 1 QP", "BW peak[MB/sec]", "BW average[MB/sec]", "MsgRate[Mpps]",
	} {
		require.Contains(t, out.String(), want)
	}
}

func TestWhatIsLeftOutIsSaid(t *testing.T) {
	had := needs["read"]
	defer func() { needs["read"] = had }()
	needs["read"] = 1 << 63 // which no device has
	for _, form := range []string{"-json=false", "-json"} {
		complaints, err := os.Create(filepath.Join(t.TempDir(), "complaints")) // of the server, too
		require.NoError(t, err)
		defer complaints.Close()
		var out bytes.Buffer
		require.NoError(t, Run(t.Context(), []string{form, "-n", "5", "-sizes", "8", "-test", "read_lat,write_lat"}, &out, complaints))
		said, err := os.ReadFile(complaints.Name())
		require.NoError(t, err)
		require.Contains(t, out.String()+string(said), "read_lat: left out: ", form)
		require.Contains(t, out.String(), "write_lat", form)
	}
}

func TestFiguresAreThoseOfTheTimes(t *testing.T) {
	times := make([]time.Duration, 100)
	for i := range times {
		times[i] = time.Duration(100-i) * 2 * time.Microsecond
	}
	r := latencies(spec{Test: "send_lat"}, times)
	want := map[string]float64{"t_min[usec]": 1, "t_max[usec]": 100, "t_typical[usec]": 51, "t_avg[usec]": 50.5, "99% percentile[usec]": 100}
	for _, c := range r.columns {
		if w, ok := want[c.name]; ok {
			require.InDelta(t, w, c.value, 1e-6, c.name)
		}
	}
	marks := make([]time.Duration, 2*parts)
	for i := range parts {
		marks[i], marks[parts+i] = time.Duration(i)*time.Second, time.Duration(i+1)*time.Second
	}
	marks[7], marks[parts+7] = 7*time.Second, 7*time.Second+500*time.Millisecond // twice as fast
	r = bandwidth(spec{Test: "write_bw", Size: 1 << 20, Iterations: 8 * parts, QPs: 2}, marks, nil)
	require.InDelta(t, 32, r.columns[0].value, 1e-6)
	require.InDelta(t, 16, r.columns[1].value, 1e-6)
	require.InDelta(t, 16e-6, r.columns[2].value, 1e-9)
}

func TestThePeakOfFewMessagesIsNoMoreThanTheyWere(t *testing.T) {
	const total = 5 // a part has one or none
	marks := make([]time.Duration, 2*parts)
	for i := range parts { // a message each second
		marks[i] = time.Duration(partsEnd(total, i)) * time.Second
		marks[parts+i] = time.Duration(partsEnd(total, i+1))*time.Second + 1
	}
	r := bandwidth(spec{Test: "write_bw", Size: 1 << 20, Iterations: total, QPs: 1}, marks, nil)
	require.InDelta(t, 1, r.columns[0].value, 1e-6)
	require.InDelta(t, 1, r.columns[1].value, 1e-6)
}

func TestOptionsThatCannotBe(t *testing.T) {
	for _, args := range [][]string{{"-test", "no_lat"}, {"-sizes", "0"}, {"-sizes", "x"}, {"-n", "0"}, {"-cq-mod", "0"}, {"-depth", ""}, {"more"}} {
		require.Error(t, Run(t.Context(), args, &bytes.Buffer{}, &bytes.Buffer{}), "%q", args)
	}
}
