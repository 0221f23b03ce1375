// Package relay takes events to a message broker, and says what an adapter for a broker has to do.
//
// [Register] makes a consumer of the bus whose handler gives events to a [Publisher]: its deliveries are rows of the consume log
// like any others, with retry, backoff, DEAD, pause and replay. Package inbox is the other end: it lands what a [Subscriber]
// receives as events, from where the engine delivers them. Events travel as CloudEvents 1.0.
//
// # To write an adapter
//
// An adapter is a [Publisher] and a [Subscriber] for one broker, each with the methods of a [Connection], made from a URL
// ([ParseURL]). Package relaytest proves it. These rules hold for all:
//
//   - A [Message] is published when the broker has confirmed it, on disk if it can. If nobody knows, it is not: the answer is an
//     error, and the same message comes again with the same ID.
//   - Messages with one [Message.Key] keep their order: the key is the partition key, or names the subject, the routing key or the
//     stream. A call holds at most one message of each key, and no other call with a message of that key runs beside it.
//   - A [Subscriber] has one goroutine for each partition, queue or stream, which hands messages to [Sink.Land] in their order and
//     acknowledges them after Land has returned nil. If Land fails they are not acknowledged, and come again, in their order.
//   - [Sink.Ready] comes before each fetch. While it waits nothing may be held that the broker would take back or hold against
//     the subscriber. Where a broker lets several subscribers fetch from one partition, the partition is named to Ready, and
//     the one whose turn begins first sees to it that what was given to the one before comes again, before anything later.
//   - Connections that break are made again by the adapter, for ever, with a pause that grows to a few seconds. The log says once
//     that a broker is away, and once that it is back.
//   - No error and no log line shows a password.
package relay
