package rgnet

import "github.com/panjf2000/gnet/v2"

// task is something to be done on the loop's goroutine. One that is left when
// the loop ends is done all the same, and finds the loop ended. It is a value,
// so that to post one allocates nothing.
type task struct {
	kind     taskKind
	c        *conn
	p        []byte   // of taskWrite
	bs       [][]byte // of taskWritev
	run      func() error
	callback gnet.AsyncCallback
}

type taskKind uint8

const (
	taskRun taskKind = iota
	taskWrite
	taskWritev
	taskWake
	taskClose
	taskEnd
)

// do does the task. An error is one that the loop is to act upon; the callback
// gets all.
func (t *task) do() (err error) {
	c := t.c
	switch t.kind {
	case taskRun:
		return t.run()
	case taskWrite:
		_, err = c.Write(t.p)
		t.call(err)
		return nil
	case taskWritev:
		_, err = c.Writev(t.bs)
		t.call(err)
		return nil
	case taskWake:
		if c.state == connOpen && !c.l.shutdown {
			err = c.traffic()
		}
	case taskClose:
		err = c.close(nil)
	case taskEnd:
		c.giveUp()
	}
	t.call(err)
	return err
}

func (t *task) call(err error) {
	if t.callback != nil {
		t.callback(t.c, err)
	}
}
