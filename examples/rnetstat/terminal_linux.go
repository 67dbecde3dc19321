package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// interactive says whether somebody looks at a terminal, and can press keys.
func interactive(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	_, outErr := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	_, inErr := unix.IoctlGetTermios(int(os.Stdin.Fd()), unix.TCGETS)
	return outErr == nil && inErr == nil
}

const (
	openScreen  = "\x1b[?1049h\x1b[?25l" // another screen, without a cursor
	closeScreen = "\x1b[?25h\x1b[?1049l"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
	toTheTop    = "\x1b[H"
)

// watch shows the processes until q is pressed, or ctx ends.
func watch(ctx context.Context, out *os.File, pids []int, every time.Duration) error {
	in := int(os.Stdin.Fd())
	saved, err := unix.IoctlGetTermios(in, unix.TCGETS)
	if err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	keysNow := *saved
	keysNow.Lflag &^= unix.ICANON | unix.ECHO // keys come at once, and are not shown
	if err := unix.IoctlSetTermios(in, unix.TCSETS, &keysNow); err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	defer unix.IoctlSetTermios(in, unix.TCSETS, saved)
	fmt.Fprint(out, openScreen)
	defer fmt.Fprint(out, closeScreen)

	keys := make(chan rune)
	go func() {
		r := bufio.NewReader(os.Stdin)
		for {
			k, _, err := r.ReadRune() // ended by a key, or the process's end
			if err != nil {
				close(keys)
				return
			}
			select { // ended by the loop below, or with it
			case keys <- k:
			case <-ctx.Done():
				return
			}
		}
	}()
	t := &top{sorted: byTraffic}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for look := true; ; {
		if look {
			l, err := takeLook(ctx, pids)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			t.take(l)
		}
		if err := t.show(out); err != nil {
			return err
		}
		select { // ended by the clock, a key or an interrupt
		case <-tick.C:
			look = true
		case k, open := <-keys:
			if !open || t.key(k) {
				return nil
			}
			look = false
		case <-ctx.Done():
			return nil
		}
	}
}

// show draws the screen in the size that the terminal has now.
func (t *top) show(out *os.File) error {
	size, err := unix.IoctlGetWinsize(int(out.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	t.width, t.height = int(size.Col), int(size.Row)
	if t.width == 0 || t.height == 0 { // a terminal that does not know
		t.width, t.height = 80, 24
	}
	page := toTheTop + strings.ReplaceAll(t.draw(), "\n", clearLine+"\r\n") + clearLine
	_, err = out.WriteString(page + clearBelow)
	return err
}
