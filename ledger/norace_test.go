//go:build !race

package ledger_test

const watched = false
