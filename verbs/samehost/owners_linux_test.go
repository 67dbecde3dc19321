package samehost

import (
	"slices"
	"testing"
)

// The kernel's answers are trusted, but old kernels leave attributes out.
func FuzzParseSocket(f *testing.F) {
	header := make([]byte, messageLen)
	attribute := func(kind uint16, value []byte) []byte {
		b := native.AppendUint16(nil, uint16(4+len(value)))
		b = append(native.AppendUint16(b, kind), value...)
		return append(b, make([]byte, -len(b)&3)...)
	}
	uid := attribute(attrUID, native.AppendUint32(nil, 1000))
	f.Add(slices.Concat(header, attribute(attrName, []byte("\x00name")), uid))
	f.Add(slices.Concat(header, attribute(attrName, []byte("/a/path")), uid))
	f.Add(slices.Concat(header, attribute(attrName, []byte("\x00name"))))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if name, _, err := parseSocket(b); err == nil && name != "" && name[0] != '@' {
			t.Fatalf("%q is not abstract", name)
		}
	})
}
