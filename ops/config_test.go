package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// paidElsewhere is another type of the same name.
type paidElsewhere struct{ paid }

// All mistakes of a config are reported at once, by name.
func TestConfigRefusesWhatContradictsItself(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	ob, err := outbox.New(db, outbox.Config{})
	require.NoError(t, err)
	_, err = ops.New(db, ob, ops.Config{Queries: -1, Jobs: []ops.Job{nil}, Publishable: []bus.Event{paid{}, nil, noted{}, paidElsewhere{}}})
	for _, says := range []string{
		"Queries is -1", "ops.Config.Jobs[0] is nil", "ops.Config.Publishable[1] is nil: give a value of the event type, such as order.Paid{}",
		`ops.Config.Publishable: ops_test.paid and ops_test.paidElsewhere are both "order.paid", and only one can be published under it: ` +
			"name each event type once, such as Publishable: []bus.Event{ops_test.paidElsewhere{}}",
	} {
		require.ErrorContains(t, err, says)
	}
}
