// Package bus is the consuming side of bluecone: it knows which consumer wants
// which event, and with which handler. A publisher of package outbox runs
// the deliveries, by internal/engine.
//
// # Contract
//
// Once: a handler registered with [On], [OnBatch], [OnSQL] or [OnSQLBatch] that
// writes only through the tx it is handed takes effect exactly once per (consumer, event), for as
// long as the consume log row is kept. Its SUCCESS row is written in the same
// transaction, before the handler runs. A handler registered with [OnExternal]
// has no transaction and runs at least once; its message carries a stable
// idempotency key to hand on.
//
// Order: an ordered consumer (the default) sees the events of one aggregate in
// commit order; events of different aggregates run side by side. After a
// delivery has failed, later events of that aggregate wait for it, for that
// consumer only.
//
// Isolation: every consumer has its own lane, its own concurrency and its own
// retry queue. None waits for another.
//
// Answers: nil, an error (retried with backoff), [Permanent], [RetryAfter],
// [Unavailable] or [Skip]. A panic and runtime.Goexit count as an error.
//
// The transaction: after a deadlock, a lock wait timeout or a lost connection
// it refuses further statements and never commits, even if the handler
// swallowed the error. Use the bun.Tx of [On] itself (or anything that takes a
// bun.IDB or its ExecContext and QueryContext); the raw tx.Tx underneath is not
// watched. The [Tx] of [OnSQL] is watched altogether.
//
// Shutdown: lanes stop taking work, let handlers finish within the drain time
// and give back the rest.
//
// Not promised: one global order, and effects outside the database once.
package bus
