package ops

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/bluecone-go/bluecone/internal/contain"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
)

// sections asks the host's modules. One that fails, or panics, becomes a finding: the others are still of use.
func (t *tracer) sections(ctx context.Context, keys []string) (further []string, err error) {
	if !t.mayAskHost(ctx) {
		return nil, nil
	}
	for i, section := range t.cfg.Sections {
		for _, key := range keys {
			var facts *Facts
			err := containHost(ctx, t.cfg.Logger, func() (err error) {
				facts, err = section(ctx, key)
				return err
			})
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				t.cfg.Logger.WarnContext(ctx, "a section of a story failed", "section", i+1, "key", key, telemetry.Err, text.Error(err))
				t.find(Finding{
					Rule: RuleSection, Level: Warn,
					Says:   fmt.Sprintf("A section of the host (number %d) could not say what it knows of %s; the log of the service says why.", i+1, key),
					Remedy: "Fix what it reads from; the rest of this story is complete.", Args: map[string]string{
						"section": fmt.Sprint(i + 1),
						"key":     key,
					},
				})
				break
			}
			if facts != nil {
				shown := *facts // the host may keep its own
				shown.Rows = slices.DeleteFunc(append([]Fact{}, facts.Rows...), func(f Fact) bool { return f.Value == "" })
				t.story.Sections = append(t.story.Sections, shown)
				further = append(further, facts.Keys...)
				break
			}
		}
	}
	return slices.DeleteFunc(unique(further), func(k string) bool { return slices.Contains(keys, k) }), nil
}

// mayAskHost reports whether sections and checks of the host may be asked: they know keys, and not whose they are.
func (t *tracer) mayAskHost(ctx context.Context) bool {
	return t.cfg.TenantSections || !CallerOf(ctx).limited()
}

// missing asks the checks which facts of the keys have no event.
func (t *tracer) missing(ctx context.Context, keys []string) error {
	t.lacks = make(map[string][]string)
	for _, key := range keys {
		var found map[string][]string
		err := containHost(ctx, t.cfg.Logger, func() (err error) {
			found, err = t.cfg.Checks.Lacks(ctx, key)
			return err
		})
		if err != nil {
			return fmt.Errorf("ops: ask the consistency checks: %w", err)
		}
		for check, facts := range found {
			t.lacks[check] = unique(append(t.lacks[check], facts...))
		}
	}
	return nil
}

// containHost calls code of the host's. A panic is its error, and the log says where it was.
func containHost(ctx context.Context, log *slog.Logger, call func() error) error {
	err := contain.Call("it", call)
	contain.Log(ctx, log, err)
	return err
}

// containURL is Config.TraceURL that makes no link instead of a panic.
func containURL(url func(traceID string) string, log *slog.Logger) func(traceID string) string {
	if url == nil {
		return nil
	}
	return func(traceID string) (link string) {
		contain.Log(context.Background(), log, contain.Call("it", func() error {
			link = url(traceID)
			return nil
		}), "of", "ops.Config.TraceURL")
		return link
	}
}
