package ops_test

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

type panicking struct{}

func (panicking) Lacks(context.Context, string) (map[string][]string, error) {
	panic("the checks fell over")
}

// What a host gives to a story may panic, or call runtime.Goexit: a section becomes a finding, checks an error, and a link is left out.
// The log says where it was.
func TestAStoryOfAHostThatPanics(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{}).consumers()
		f.save(outbox.With(paid{OrderID: "7"}, outbox.Meta(bus.MetaTraceID, "trace")))
		f.once()
		var said bytes.Buffer
		log := slog.New(slog.NewTextHandler(&said, nil))
		for name, cfg := range map[string]ops.Config{
			"section": {Sections: []ops.Section{func(context.Context, string) (*ops.Facts, error) { panic("the section fell over") }}},
			"goexit": {Sections: []ops.Section{func(context.Context, string) (*ops.Facts, error) {
				runtime.Goexit()
				return nil, nil
			}}},
			"url": {TraceURL: func(string) string { panic("the link fell over") }},
		} {
			cfg.Logger = log
			o, err := ops.New(db, f.ob, cfg)
			require.NoError(t, err)
			s, err := o.Trace(t.Context(), "ORDER/7")
			require.NoError(t, err, name)
			require.Len(t, s.Events, 1, name)
			require.Empty(t, s.Events[0].TraceURL, name)
			require.Equal(t, name != "url", s.Findings[0].Rule == ops.RuleSection, name)
		}
		o, err := ops.New(db, f.ob, ops.Config{Checks: panicking{}, Logger: log})
		require.NoError(t, err)
		_, err = o.Trace(t.Context(), "ORDER/7")
		require.ErrorContains(t, err, "ops: ask the consistency checks: it panicked: the checks fell over")
		for _, what := range []string{"the section fell over", "the link fell over", "the checks fell over", "host_test.go:"} {
			require.Contains(t, said.String(), what)
		}
	})
}
