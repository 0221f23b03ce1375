// Package settle writes what has become of events: it ends and renews their leases, computes the status of an event from its
// deliveries, brings the status up to date when a delivery ends later (roll-up), and repairs what a crash between two
// transactions leaves (sweep). It is told what it needs and returns what happened; it calls nobody back.
package settle
