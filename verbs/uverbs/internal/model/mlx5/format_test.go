package mlx5

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/model/fabric"
)

func bytesOf(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "|", "", "\n", "").Replace(text))
	require.NoError(t, err)
	return b
}

// What is by libmlx5 was printed by model -wqe; the rest follows its mlx5dv.h.
func TestSendQueueFormats(t *testing.T) {
	for _, test := range []struct {
		name    string
		service fabric.Service
		wqe     string
		want    workRequest
	}{
		{
			name: "signaled SEND of 64 bytes",
			wqe:  "0000000a 00011302 00000008 00000000 | 00000040 00011100 00005581 2a3b4c00",
			want: workRequest{
				control: control{fabric.Request{Op: fabric.Send, Slots: 1, Signaled: true,
					List: []fabric.Scatter{{Addr: 0x55812a3b4c00, Size: 64, Key: 0x11100}}, Length: 64}, 0x113, 32},
			},
		},
		{
			name: "solicited SEND with immediate and two pieces",
			wqe:  "0001020b 00011303 0000000a 01020304 | 00000001 00000200 00000000 00001000 | 00000002 00000300 00000000 00002000",
			want: workRequest{
				control: control{fabric.Request{Op: fabric.SendImm, Index: 0x102, Slots: 1, Signaled: true, Solicited: true, Imm: [4]byte{1, 2, 3, 4},
					List: []fabric.Scatter{{Addr: 0x1000, Size: 1, Key: 0x200}, {Addr: 0x2000, Size: 2, Key: 0x300}}, Length: 3}, 0x113, 48},
			},
		},
		{
			name: "inline WRITE of 3 bytes by libmlx5",
			wqe: "00000008 00010403 00000008 00000000 | 0000556f 0e3b2000 0001026a 00000000 |" +
				"80000003 00000100 00000000 00000000",
			want: workRequest{
				control: control{fabric.Request{Op: fabric.Write, Slots: 1, Signaled: true,
					Addr: 0x556f0e3b2000, RKey: 0x1026a, Inline: []byte{0, 0, 1}, Length: 3}, 0x104, 48},
			},
		},
		{
			name: "READ by libmlx5",
			wqe: "00000110 01010403 00000008 00000000 | 0000562d 0fc8e000 0001026a 00000000 |" +
				"00000002 0101026a 000055f5 3b2a1000",
			want: workRequest{
				control: control{fabric.Request{Op: fabric.Read, Index: 1, Slots: 1, Signaled: true,
					Addr: 0x562d0fc8e000, RKey: 0x1026a, List: []fabric.Scatter{{Addr: 0x55f53b2a1000, Size: 2, Key: 0x101026a}}, Length: 2}, 0x10104, 48},
			},
		},
		{
			name: "compare and swap",
			wqe: "00000011 00011304 00000008 00000000 | 00000000 00000010 0000abcd 00000000 |" +
				"00000000 00000005 00000000 00000004 | 00000008 00000200 00000000 00001000",
			want: workRequest{
				control: control{fabric.Request{Op: fabric.Compare, Slots: 1, Signaled: true,
					Addr: 0x10, RKey: 0xabcd, SwapAdd: 5, Equal: 4, List: []fabric.Scatter{{Addr: 0x1000, Size: 8, Key: 0x200}}, Length: 8}, 0x113, 64},
			},
		},
		{
			name:    "SEND of UD by LID, by libmlx5",
			service: fabric.UD,
			wqe: "0000000a 01010405 00000008 00000000 | 11111111 00000000 80000104 00000007 |" +
				"00000000 00000000 00000000 00000000 | 00000000 00000000 00000000 00000000 | 00000400 0101026a 0000556e 999d9028",
			want: workRequest{
				control: control{fabric.Request{Op: fabric.Send, Slots: 2, Signaled: true,
					To: fabric.Datagram{QKey: 0x11111111, QPN: 0x104, Address: fabric.Address{LID: 7}}, List: []fabric.Scatter{{Addr: 0x556e999d9028, Size: 1024, Key: 0x101026a}}, Length: 1024}, 0x10104, 80},
			},
		},
		{
			name: "SEND_WITH_INV by libmlx5",
			wqe:  "00000101 00010601 00000008 000108aa",
			want: workRequest{control: control{fabric.Request{Op: fabric.SendInv, Index: 1, Slots: 1, Signaled: true, Imm: [4]byte{0, 1, 8, 0xaa}}, 0x106, 16}},
		},
		{
			name: "BIND_MW of type 2 by libmlx5",
			wqe:  libmlx5Bind,
			want: workRequest{
				control: control{fabric.Request{Op: fabric.ChangeKey, Slots: 3, Signaled: true, Imm: [4]byte{0, 1, 8, 0xa8}}, 0x107, 192},
				keyChange: keyChange{key: 0x108a8, checkFree: true, setKey: true, setQPN: true, variant: 0xa9, qpn: 0x107,
					access: fabric.AccessRemoteWrite | fabric.AccessRemoteRead, addr: 0x55c45f43c400, length: 0x400, target: fabric.Scatter{Addr: 0x55c45f43c400, Size: 0x400, Key: 0x104d4}},
			},
		},
		{
			name: "LOCAL_INV by libmlx5",
			wqe:  libmlx5Free,
			want: workRequest{
				control:   control{fabric.Request{Op: fabric.ChangeKey, Index: 3, Slots: 2, Signaled: true, Imm: [4]byte{0, 1, 8, 0xa9}}, 0x107, 128},
				keyChange: keyChange{key: 0x108a9, checkQPN: true, setKey: true, setQPN: true, free: true, qpn: fabric.AnyQP},
			},
		},
		{
			name:    "READ of XRC",
			service: fabric.XRCInitiator,
			wqe: "00000010 00011304 00000008 00000000 | 00abcdef 00000000 00000000 00000000 |" +
				"00000000 00000010 0000abcd 00000000 | 00000001 00000200 00000000 00001000",
			want: workRequest{
				control: control{fabric.Request{Op: fabric.Read, Slots: 1, Signaled: true, SRQ: 0xabcdef,
					Addr: 0x10, RKey: 0xabcd, List: []fabric.Scatter{{Addr: 0x1000, Size: 1, Key: 0x200}}, Length: 1}, 0x113, 64},
			},
		},
		{
			name: "NOP",
			wqe:  "00000100 00011301 00000000 00000000",
			want: workRequest{control: control{fabric.Request{Op: fabric.Nop, Index: 1, Slots: 1}, 0x113, 16}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseWQE(bytesOf(t, test.wqe), test.service)
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}
}

const zeros8 = "00000000 00000000"

var (
	libmlx5Bind = "00000025 0001070c 00000008 000108a8 | b0000000 00040000 00000000 203c6041" + strings.Repeat(zeros8, 4) +
		"| 00003000 000107a9" + zeros8 + "000055c4 5f43c400 00000000 00000400" + strings.Repeat(zeros8, 4) +
		"| 00000400 000104d4 000055c4 5f43c400" + strings.Repeat(zeros8, 6)
	libmlx5Free = "00000325 00010708 00000028 000108a9 | 98000000 00000000 00000000 20006000" + strings.Repeat(zeros8, 4) +
		"| 40000000 ffffff00" + strings.Repeat(zeros8, 7)
)

func TestKeyChangesThatAreNoneAreErrors(t *testing.T) {
	for name, c := range map[string]struct {
		wqe string
		at  int
		b   byte
	}{
		"the target is elsewhere":                   {libmlx5Bind, 16, 0x30},
		"a flag that is not known":                  {libmlx5Bind, 16, 0xb1},
		"an offset":                                 {libmlx5Bind, 23, 1},
		"a field that is not known":                 {libmlx5Bind, 24, 1},
		"a range without its length":                {libmlx5Bind, 31, 0x40},
		"a state that is not changed":               {libmlx5Bind, 28, 0},
		"more segments than there are":              {libmlx5Bind, 21, 8},
		"more bytes than the target has":            {libmlx5Bind, 64 + 30, 5},
		"a free key with a target":                  {libmlx5Bind, 64, 0x40},
		"a free key with a range":                   {libmlx5Free, 31, 1},
		"a key that leads somewhere, but no target": {libmlx5Free, 64, 0},
	} {
		t.Run(name, func(t *testing.T) {
			wqe := bytesOf(t, c.wqe)
			wqe[c.at] = c.b
			_, err := parseWQE(wqe, fabric.RC)
			require.Error(t, err)
			_, err = parseWQE(wqe[:len(wqe)-64], fabric.RC)
			require.Error(t, err)
		})
	}
}

func TestWQEsThatAreNoneAreErrors(t *testing.T) {
	services := map[string]fabric.Service{"UD ": fabric.UD, "XRC": fabric.XRCInitiator}
	for name, wqe := range map[string]string{
		"unknown opcode":                       "0000007f 00011301 00000000 00000000",
		"WRITE without a remote address":       "00000008 00011301 00000000 00000000",
		"inline data longer than the WQE":      "0000000a 00011302 00000000 00000000 | 80000030 00000000 00000000 00000000",
		"READ into the WQE":                    "00000010 00011303 00000000 00000000 | 00000000 00000010 0000abcd 00000000 | 80000001 61000000 00000000 00000000",
		"inline data of a length that is none": "0000000a 00011302 00000000 00000000 | 80000404 00000000 00000000 00000000",
		"UD with the short address": "0000000a 00011304 00000000 00000000 | 00000007 00000000 00000104 00000007 |" +
			strings.Repeat("00000000", 8),
		"half a compare and swap":           "00000011 00011302 00000000 00000000 | 00000000 00000010 0000abcd 00000000",
		"UD without an address":             "0000000a 00011302 00000000 00000000 | 00000000 00000000 00000000 00000000",
		"XRC without an SRQ":                "0000000a 00011301 00000000 00000000",
		"inline data beside a gather entry": "0000000a 00011303 00000000 00000000 | 80000001 61000000 00000000 00000000 | 00000001 00000200 00000000 00001000",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseWQE(bytesOf(t, wqe), services[name[:3]])
			require.Error(t, err)
		})
	}
}

// In it a length of 0 is the largest, as in the lists of send queues.
func TestReceiveListEndsWithTheInvalidKey(t *testing.T) {
	wqe := bytesOf(t, "00000010 00000200 00000000 00001000 | 00000000 00000200 00000000 00002000 |"+
		"00000000 00000100 00000000 00000000 | 00000010 00000200 00000000 00002000")
	require.Equal(t, []fabric.Scatter{{Addr: 0x1000, Size: 16, Key: 0x200}, {Addr: 0x2000, Size: 1 << 31, Key: 0x200}}, parseScatter(wqe))
}

// Offsets are those of struct mlx5_cqe64.
func TestCQEFormats(t *testing.T) {
	for _, test := range []struct {
		name  string
		owner byte
		from  completion
		want  string
	}{
		{
			name: "of a SEND", owner: 1,
			from: completion{op: cqeRequest, qpn: 0x113, uidx: 5, index: 0x1234, request: opSend},
			want: zeros(32) + "00000005" + zeros(20) + "0a000113 1234 00 01",
		},
		{
			name: "of a message with immediate, solicited",
			from: completion{op: cqeSendImm, qpn: 0x113, uidx: 5, index: 3, bytes: 0x40, imm: [4]byte{1, 2, 3, 4}, solicited: true},
			want: zeros(32) + "00000005 01020304" + zeros(4) + "00000040" + zeros(8) + "00000113 0003 00 32",
		},
		{
			name: "of a message that takes a key away",
			from: completion{op: cqeSendInv, qpn: 0x113, uidx: 5, index: 3, imm: [4]byte{1, 2, 3, 4}},
			want: zeros(32) + "00000005 01020304" + zeros(16) + "00000113 0003 00 40",
		},
		{
			name: "of a datagram",
			from: completion{op: cqeSend, qpn: 0x113, uidx: 5, bytes: 44, slid: 8, source: 0x206 | 3<<24},
			want: zeros(22) + "0008 03000206" + zeros(4) + "00000005" + zeros(8) + "0000002c" + zeros(8) + "00000113 0000 00 20",
		},
		{
			name: "of a request whose retries are exceeded",
			from: completion{op: cqeRequestError, qpn: 0x113, uidx: 5, index: 1, request: opWrite, cause: retriesExceeded},
			want: zeros(32) + "00000005" + zeros(18) + "8115 08000113 0001 00 d0",
		},
		{
			name: "of a receive request that is flushed", owner: 1,
			from: completion{op: cqeResponseError, qpn: 0x113, uidx: 5, index: 1, cause: flushed},
			want: zeros(32) + "00000005" + zeros(18) + "f905 00000113 0001 00 e1",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, hex.EncodeToString(bytesOf(t, test.want)), hex.EncodeToString(test.from.encode(test.owner)))
		})
	}
}

func zeros(n int) string { return strings.Repeat("00", n) }
