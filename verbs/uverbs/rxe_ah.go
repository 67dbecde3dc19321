package uverbs

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
)

// createAH returns the number that requests call the address handle by.
func (c *rxeContext) createAH(_ *verbs.AddressVector, create func(extra) error) (any, error) {
	var out rxeCreateAHOut
	if err := create(extra{out: bytesOf(&out)}); err != nil {
		return nil, err
	}
	if out.ahNum == 0 {
		return nil, fmt.Errorf("%w: the driver of this kernel (before 5.15) has no numbers for address handles", verbs.ErrUnsupported)
	}
	return out.ahNum, nil
}

// rxeAHNumber is what requests call an address handle.
func rxeAHNumber(ah *verbs.AH) uint32 {
	num, _ := addressHandle(ah).(uint32)
	return num
}
