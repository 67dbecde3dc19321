package uverbs

// request is a command and its parts. in is the structure of the header with
// the address of the answer, if it has one, left 0; out is the answer. The
// driver's parts come behind both.
type request struct {
	cmd      command
	in, out  []byte
	extraIn  []byte
	extraOut []byte
}

// The parts of a page. The write interface wants the driver's parts right
// behind the core's, and the ioctl interface takes them anywhere.
const (
	pageAttrs = 0    // the ioctl header and attributes, or the write header before pageIn
	pageIn    = 512  // in, extraIn
	pageOut   = 2048 // out, extraOut
)
