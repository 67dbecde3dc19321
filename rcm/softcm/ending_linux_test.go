package softcm

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheEndIsToldToAllWhoAskBeforeAndAfter(t *testing.T) {
	var e ending
	called := make(chan string, 3)
	before := e.done()
	e.after(func() { called <- "first" })
	e.after(func() { called <- "second" })
	require.NoError(t, e.why())
	select {
	case <-before:
		t.Fatal("ended already")
	default:
	}
	why := errors.New("why")
	e.end(why)
	e.end(errors.New("later"))
	require.Equal(t, why, e.why())
	<-before
	<-e.done()
	e.after(func() { called <- "third" })
	require.ElementsMatch(t, []string{"first", "second", "third"}, []string{<-called, <-called, <-called})
	require.Empty(t, called)
	var late ending
	late.end(why)
	<-late.done()
}
