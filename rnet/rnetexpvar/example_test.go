package rnetexpvar_test

import (
	"encoding/json"
	"expvar"
	"fmt"

	"github.com/seed-b9b531af/ramjet/rnet"
	_ "github.com/seed-b9b531af/ramjet/rnet/rnetexpvar"
)

// The import is all it takes. What /debug/vars shows under the name rnet are
// the rnet.Stats of the process.
func Example() {
	ln, err := rnet.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer ln.Close()

	var st rnet.Stats
	if err := json.Unmarshal([]byte(expvar.Get("rnet").String()), &st); err != nil {
		panic(err)
	}
	fmt.Println("listeners:", len(st.Listeners))
	// Output: listeners: 1
}
