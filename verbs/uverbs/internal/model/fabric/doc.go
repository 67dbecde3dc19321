// Package fabric is what connects devices of the model, and what they have in common: ports and
// their GIDs, keys of memory, the states of QPs, and requests that are carried out between the
// memories of programs. It knows the verbs and the kernel's core, but no device.
//
// A kind of device is a package beside this one, as mlx5. Its devices have a [Port]. They are the
// [Hardware] behind it, which looks at what programs have written, and have the [Queues] of each
// [QP], which turn their own formats into a [Request] and what becomes of it into completions. One
// goroutine, [Fabric.Run], is the hardware of all.
package fabric
