// Package delivery runs the deliveries of claimed events, and those that wait in the consume log. Each consumer has a lane, and the
// lanes work side by side. A worker of a lane takes a batch from the lane's queue and runs it in one fenced transaction: it
// writes the marks, asks whether the deliveries may run, calls the handlers, looks whether the leases still hold, and commits.
// When a handler refuses a delivery, the worker runs the batch again in parts, so that only that one fails.
package delivery
