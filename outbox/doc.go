// Package outbox is the producing side of bluecone: it saves events in the
// transaction of the change that caused them, and publishes them after the commit.
//
// # Contract
//
// [Outbox.Save] takes a transaction: any [Tx], such as a bun.Tx or a *sql.Tx. A *bun.DB or
// *sql.DB does not compile, so nothing is saved outside a transaction.
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
// The status column alone says what is due. A claim's starting point is only a short cut.
// All times are the database's.
//
// # Shutdown
//
// When the context of [Publisher.Run] ends, it stops claiming, lets running handlers
// finish within the drain time, gives back the rest, and returns nil.
package outbox
