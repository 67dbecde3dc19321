package verbs_test

import (
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/seed-b9b531af/ramjet/verbs"
	_ "github.com/seed-b9b531af/ramjet/verbs/soft"
)

// Example connects two QPs of one process by hand and writes from one side's
// memory into the other's, with an immediate that says that the data is
// there. Package rcm connects QPs of different processes.
func Example() {
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	dev, err := verbs.Open("soft0")
	check(err)
	defer dev.Close()
	pd, err := dev.AllocPD()
	check(err)
	ch, err := dev.CreateCompChannel()
	check(err)
	cq, err := dev.CreateCQ(verbs.CQAttr{CQE: 16}, ch)
	check(err)
	mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, verbs.MROptions{})
	check(err)

	attr := verbs.QPInitAttr{
		Type: verbs.QPTypeRC, SendCQ: cq, RecvCQ: cq,
		Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
	}
	sender, err := pd.CreateQP(attr)
	check(err)
	receiver, err := pd.CreateQP(attr)
	check(err)
	gids, err := dev.QueryGIDs(1)
	check(err)
	for _, qp := range []*verbs.QP{sender, receiver} {
		check(toInit(qp))
	}
	_, err = receiver.PostRecv([]verbs.RecvWR{{ID: 1}}) // takes the immediate
	check(err)
	check(toRTS(receiver, gids[0].GID, sender.Num()))
	check(toRTS(sender, gids[0].GID, receiver.Num()))

	n := copy(mr.Bytes(), "written from afar")
	_, err = sender.PostSend([]verbs.SendWR{{
		Opcode: verbs.OpWriteWithImm, Imm: uint32(n), SGL: []verbs.SGE{mr.SGE(0, n)},
		RemoteAddr: mr.Addr() + 2048, RKey: mr.RKey(),
	}})
	check(err)

	// Nothing may arrive between the last Poll and Arm unseen, so poll once
	// more after Arm, and only then wait.
	var wcs [1]verbs.WC
	for got := 0; got == 0; {
		check(cq.Arm(false))
		got, err = cq.Poll(wcs[:])
		check(err)
		if got == 0 {
			check(ch.Wait(time.Time{})) // ends with the immediate
			got, err = cq.Poll(wcs[:])
			check(err)
		}
	}
	check(wcs[0].Err())
	fmt.Printf("%s\n", mr.Bytes()[2048:2048+wcs[0].Imm])
	// Output: written from afar
}

// Devices lists those of all providers that the program links in.
func ExampleDevices() {
	list, err := verbs.Devices()
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range list {
		if d.Provider == "soft" {
			fmt.Println(d.Name, "over", d.Transport)
		}
	}
	// Output: soft0 over soft
}

// A program can cap the memory that all its devices pin together. What fails
// says what can be done about it.
func ExampleSetPinLimit() {
	former := verbs.SetPinLimit(verbs.PinnedBytes() + 1<<20)
	defer verbs.SetPinLimit(former)
	dev, err := verbs.Open("soft0")
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		log.Fatal(err)
	}

	_, err = pd.AllocMR(2<<20, verbs.AccessLocalWrite, verbs.MROptions{})
	fmt.Println(errors.Is(err, verbs.ErrPinLimit))
	var failure *verbs.Error
	if errors.As(err, &failure) {
		fmt.Println(failure.Op, "on", failure.Device)
		fmt.Println(failure.Hint)
	}
	// Output:
	// true
	// allocate MR on soft0
	// raise it with verbs.SetPinLimit, or close connections
}
