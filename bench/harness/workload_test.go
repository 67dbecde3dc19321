package harness

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStampedMessagePassesTheCheck(t *testing.T) {
	for _, size := range []int{minMessage, 17, 64, 4096, 4097, 4104, 4111, 1 << 20} {
		message := make([]byte, size)
		want := firstNumber(3) + 5
		for _, flags := range []uint64{0, lastMessage} {
			stamp(message, want, flags)
			require.NoError(t, check(message, want), "size %d", size)
			got, gotFlags := number(message)
			require.Equal(t, want, got)
			require.Equal(t, flags, gotFlags)
			require.Error(t, check(message, want+1), "the next message is another one")
			require.Error(t, check(message, want+firstNumber(1)), "so is another connection's")
		}
	}
}

func TestCheckNoticesDamage(t *testing.T) {
	const size = 3*stampStride + 100
	for name, damage := range map[string]func(message []byte){
		"a page of zeros":      func(m []byte) { clear(m[stampStride : 2*stampStride]) },
		"pages that change":    func(m []byte) { copy(m[stampStride:2*stampStride], m[2*stampStride:3*stampStride]) },
		"an end of zeros":      func(m []byte) { clear(m[size-20:]) },
		"the message before's": func(m []byte) { old := make([]byte, size); stamp(old, 8, 0); copy(m[size-50:], old[size-50:]) },
		"a shift by one byte":  func(m []byte) { copy(m[1:], m) },
	} {
		message := make([]byte, size)
		stamp(message, 9, 0)
		damage(message)
		require.Error(t, check(message, 9), name)
	}
}

func TestConnectionNumbersStayClearOfTheFlag(t *testing.T) {
	require.Zero(t, firstNumber(connMask)&lastMessage)
	require.Zero(t, firstNumber(connMask+1), "ids begin again")
}
