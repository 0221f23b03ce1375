//go:build race

package ledger_test

// watched says that the race detector watches, which makes each step several times as slow: the machine takes a sample then.
const watched = true
