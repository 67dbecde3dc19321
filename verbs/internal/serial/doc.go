// Package serial has what queues use in place of locked instructions where the program
// promises that its calls do not overlap, as it does with the thread domains of the verbs.
//
//   - A [Section] keeps the data path of a queue, posting or polling, apart from whoever
//     changes the queue beneath it: Modify, Close, the end of a device.
//   - A [Word] is a counter with one writer at a time, which others read.
package serial
