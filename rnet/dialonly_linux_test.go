package rnet

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/seed-b9b531af/ramjet/rnet/internal/roles"
	"github.com/stretchr/testify/require"
)

// A process that only dials looks at an idle session as seldom as it can. Its Writes learn
// of the peer's end all the same: one goes nowhere, as over TCP, and none
// after a reset.
func TestWritesOfAProcessThatOnlyDialsLearnOfTheEnd(t *testing.T) {
	for name, want := range map[string]struct {
		linger, writes int
	}{"closed": {-1, 1}, "reset": {0, 0}} {
		t.Run(name, func(t *testing.T) {
			for _, how := range []string{"Write", "Commit"} {
				t.Run(how, func(t *testing.T) {
					ln := overSoft.listen(t)
					control, err := net.Listen("tcp", "127.0.0.1:0")
					require.NoError(t, err)
					defer control.Close()
					child := roles.Start(t, "dialonly", ln.Addr().String(), control.Addr().String(), how)
					c, err := ln.Accept()
					require.NoError(t, err)
					say, err := control.Accept()
					require.NoError(t, err)
					defer say.Close()
					_, err = c.Write([]byte("x"))
					require.NoError(t, err)
					require.Equal(t, "has read", child.Line(t))
					require.NoError(t, c.(*Conn).SetLinger(want.linger))
					require.NoError(t, c.Close())
					// so that the end has arrived, most of the time
					time.Sleep(20 * time.Millisecond)
					_, err = say.Write([]byte("closed\n"))
					require.NoError(t, err)
					var writes int
					_, err = fmt.Sscanf(child.Line(t), "%d Writes", &writes)
					require.NoError(t, err)
					require.Equal(t, want.writes, writes)
				})
			}
		})
	}
}

// Such a process reads what arrived after its CloseRead, before io.EOF.
func TestReadsOfAProcessThatOnlyDialsGetWhatCameAfterCloseRead(t *testing.T) {
	for _, how := range []string{"Read", "Peek", "WriteTo"} {
		t.Run(how, func(t *testing.T) {
			ln := overSoft.listen(t)
			control, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer control.Close()
			child := roles.Start(t, "dialonly", ln.Addr().String(), control.Addr().String(), how)
			c, err := ln.Accept()
			require.NoError(t, err)
			defer c.Close()
			other, err := ln.Accept()
			require.NoError(t, err)
			defer other.Close()
			say, err := control.Accept()
			require.NoError(t, err)
			defer say.Close()
			_, err = c.Write([]byte("x"))
			require.NoError(t, err)
			require.Equal(t, "has read", child.Line(t))
			for range 20 { // more than one poll takes at first
				_, err = other.Write([]byte("y"))
				require.NoError(t, err)
			}
			_, err = c.Write([]byte("late"))
			require.NoError(t, err)
			_, err = say.Write([]byte("written\n"))
			require.NoError(t, err)
			require.Equal(t, `"late" <nil>`, child.Line(t))
		})
	}
}

func init() {
	roles.Add("dialonly", func(args []string) error {
		c, err := (&Dialer{Transport: Soft}).Dial("tcp", args[0])
		if err != nil {
			return err
		}
		reads := args[2] != "Write" && args[2] != "Commit"
		if reads {
			other, err := (&Dialer{Transport: Soft}).Dial("tcp", args[0])
			if err != nil {
				return err
			}
			defer other.Close()
		}
		control, err := net.Dial("tcp", args[1])
		if err != nil {
			return err
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			return err
		}
		if reads {
			if err := c.(*Conn).CloseRead(); err != nil {
				return err
			}
		}
		fmt.Println("has read")
		if _, err := bufio.NewReader(control).ReadString('\n'); err != nil {
			return err
		}
		if reads {
			got := make([]byte, 4)
			switch args[2] {
			case "Read":
				_, err = io.ReadFull(c, got)
			case "Peek":
				got, err = c.(*Conn).Peek(4)
			case "WriteTo":
				var all bytes.Buffer
				_, err = c.(*Conn).WriteTo(&all)
				got = all.Bytes()
			}
			fmt.Printf("%q %v\n", got, err)
			return nil
		}
		writes := 0
		for ; writes < 5; writes++ {
			if args[2] == "Write" {
				_, err = c.Write([]byte("y"))
			} else if _, err = c.(*Conn).Reserve(1); err == nil {
				err = c.(*Conn).Commit(1)
			}
			if err != nil {
				break
			}
		}
		fmt.Println(writes, "Writes")
		_, _ = bufio.NewReader(control).ReadString('\n') // ends with the test
		return nil
	})
}
