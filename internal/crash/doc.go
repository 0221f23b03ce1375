// Package crash holds the tests that end, freeze or cut off a real process at every point of its life,
// and look at what is left: see TestEveryPointSurvives. It has no code of its own.
//
// A point is a statement that the process sends to its database, before it is sent or after it was
// answered: between two of them a process changes nothing that outlives it, so there are no others. The
// points are not written down anywhere; a life without a fault tells them, by package, file and statement.
package crash
