package rxe

import (
	"fmt"

	"github.com/seed-b9b531af/ramjet/verbs"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/abi"
	"github.com/seed-b9b531af/ramjet/verbs/uverbs/internal/driver"
)

// CreateAH returns the number that requests call the address handle by.
func (c *context) CreateAH(_ *verbs.AddressVector, create func(driver.Udata) error) (any, error) {
	var out createAHOut
	if err := create(driver.Udata{Out: abi.BytesOf(&out)}); err != nil {
		return nil, err
	}
	if out.ahNum == 0 {
		return nil, fmt.Errorf("%w: the driver of this kernel (before 5.15) has no numbers for address handles", verbs.ErrUnsupported)
	}
	return out.ahNum, nil
}

// ahNumber is what requests call an address handle.
func ahNumber(ah *verbs.AH) uint32 {
	num, _ := driver.AddressHandle(ah).(uint32)
	return num
}
