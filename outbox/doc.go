// Package outbox is the producing side of bluecone: it saves events in the
// transaction of the change that caused them, and publishes them after the commit.
//
// # Contract
//
// [Outbox.Save] takes a bun.Tx, so saving outside a transaction does not compile.
// It validates first, then costs one INSERT in the caller's transaction, and never
// waits for the engine. The event exists if and only if that transaction commits.
//
// A [Publisher] claims committed events in a short transaction of its own, hands
// them to the lanes of a bus, and settles them when every consumer has an outcome.
// Claims are leases: when an instance dies, freezes or is cut off, another one
// claims the event again after the lease has expired. Every write that ends
// something carries the owner and the lock version of the lease.
//
// Two instances never work on two events of one aggregate at the same time.
//
// The state column is the only cursor: there is no moving id, and no clock of a
// process decides anything.
//
// # Shutdown
//
// When the context of [Publisher.Run] ends, it stops claiming, lets running handlers
// finish within the drain time, gives back the rest, and returns nil.
package outbox
