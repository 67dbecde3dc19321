// Package mlx5 is a model of the mlx5 device, a ConnectX, as the kernel's mlx5_ib and
// the hardware together look to a driver in user space: control commands by
// uverbs, queues in the program's memory, doorbells in pages that the program
// maps, completions written to its memory.
//
// Package fabric connects devices, and carries requests out. The way of a work request through it:
//
//  1. The driver writes a WQE to its send queue, the new index to the doorbell record, and 8
//     bytes of the WQE to a register in a UAR page. The record and the queue are the
//     program's memory; the page is shared (see [uar]).
//  2. [fabric.Fabric.Run] has the device look. That finds that the register was written, and reads
//     the records of all QPs, or of all CQs, of that page: registers are shared, and what was stored
//     last hides what was before.
//  3. Of each QP whose record has moved, fabric asks for the WQEs in order (send_linux.go).
//     It checks the keys of what they name, on both sides, and copies from one program's
//     memory to the other's.
//  4. A CQE is written for whoever is to have one (cq_linux.go), and if the CQ is armed, an event
//     to its channel.
//
// Formats are those of rdma-core's providers/mlx5/mlx5dv.h, and stand in format.go.
package mlx5
