// Package alert tells people when the bus needs them.
//
// # Contract
//
// What is wrong is a row in the database, one per rule and subject: FIRING while it lasts, RESOLVED
// afterwards. Every change of that row writes the messages about it, one per sink, in the same
// transaction, and a message is sent again until its sink has accepted it: at least once, in the
// order of its alert, however often processes die in between. A message carries its id, so that a
// receiver can recognise what it has got already.
//
// Any number of instances may run an [Alerter]; one of them at a time looks, by index, so that a
// fault is one message and not one per instance. Only the clock is looked at by every instance for
// itself.
//
// A sink that is down, slow or refuses holds up neither the other sinks nor the engine: its messages
// wait, with growing pauses, and are counted (alert.failed). No message carries a payload, and what
// could be markup for the receiver is made harmless.
//
// A condition speaks of ages and rates, not of one bad moment; its limits can differ by consumer and
// event type. An alert that lasts is repeated at growing intervals and rises from WARN to CRITICAL,
// at which level it may go to further sinks.
package alert
