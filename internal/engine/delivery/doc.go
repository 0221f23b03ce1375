// Package delivery runs the deliveries of claimed events and of what waits in the consume log: one lane per consumer, side by
// side. A lane takes a batch from its queue and runs it in one fenced transaction: mark, may it run, handle, verify, commit; in
// parts when the handler refuses one of them.
package delivery
