package alert

import (
	"context"
	"log/slog"
)

// Log is a sink that writes one line per message: CRITICAL at ERROR, WARN at WARN, RESOLVED at INFO.
// A nil logger is slog.Default().
func Log(logger *slog.Logger) Sink {
	return SinkFunc(func(ctx context.Context, n Notice) error {
		l := logger
		if l == nil {
			l = slog.Default()
		}
		level := slog.LevelWarn
		switch {
		case n.Kind == Resolved:
			level = slog.LevelInfo
		case n.Level == Critical:
			level = slog.LevelError
		}
		l.Log(ctx, level, "alert", "kind", string(n.Kind), "level", string(n.Level), "rule", n.Rule, "subject", n.Subject,
			"says", n.Says, "count", n.Count, "since", n.Since, "remedy", n.Remedy, "link", n.Link, "runbook", n.Runbook, "id", n.ID)
		return nil
	})
}
