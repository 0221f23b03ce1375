// Package simulation runs the real engine in a simulated world: two or three instances with their
// publishers, reapers and retention, on one database, in fake time, among faults that a seed draws.
// There is nothing to import; its tests are the package.
//
// # Contract
//
// Every life runs in a bubble of testing/synctest: an hour costs nothing, and goroutines that are
// stuck for ever are found at once. The database is SQLite in memory, behind a driver that reads the
// bubble's clock wherever the SQL says 'now', has one writer at a time, and does to statements what
// networks and servers do to them. A seed decides what is saved, which handlers fail, which faults
// there are and how often; which goroutine runs first it does not, so a life that went wrong may
// need a few runs to go wrong again.
//
// Some lives have more, two things at most, each in a file of its own: the first instance does not know a
// newer schema version; two tenants have the same aggregate, and what is DEAD of one waits until all of
// the other is done; events are delayed; the operator replays events, also while retention removes them;
// one delivery kills its process each time, until it is DEAD; the database's clock leaps; a consumer is registered late and wants the
// past. After a leap back
// I10 is not asked, because it compares times. The clock of a process cannot leap in a bubble.
package simulation
