package main

import (
	"errors"
	"testing"

	"github.com/uptrace/bun"
)

// A handler's event is told of when its own transaction has committed: not before, not by another's COMMIT and not after a
// rollback. Transactions that cannot be told apart are an error.
func TestCommitsAreTold(t *testing.T) {
	m, err := startMachine("sqlite")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.stop)
	db, err := m.fresh(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.close)
	var c commits
	var told []int
	pool := db.bun()
	begin := func(pool *bun.DB, seqs ...int) bun.Tx {
		tx, err := pool.BeginTx(t.Context(), nil)
		for _, seq := range seqs {
			err = errors.Join(err, c.note(tx, seq, func(seq int) { told = append(told, seq) }))
		}
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	end := func(end func() error, want ...int) {
		t.Helper()
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if len(told) != len(want) {
			t.Fatalf("told of %v, not of %v", told, want)
		}
		for i := range want {
			if told[i] != want[i] {
				t.Fatalf("told of %v, not of %v", told, want)
			}
		}
	}
	first, second := pool.WithQueryHook(&c), pool.WithQueryHook(&c)
	one := begin(first, 1, 2)
	end(one.Commit, 1, 2)
	end(begin(second, 3).Rollback, 1, 2)
	end(begin(second).Commit, 1, 2)

	shared := begin(first, 4)
	other := shared
	other.Tx = one.Tx
	if err := c.note(other, 5, nil); !errors.Is(err, errShared) {
		t.Fatalf("two transactions with one *bun.DB: %v", err)
	}
	end(shared.Commit, 1, 2, 4)
}
