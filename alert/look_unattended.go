package alert

import (
	"context"

	"github.com/bluecone-go/bluecone/internal/store/view"
)

// readUnattended finds what waits although nobody works on it. Of deliveries it is judged with their queues, of the past here.
func (l *look) readUnattended(ctx context.Context) (err error) {
	r := view.Reader{D: l.d, Names: longestName, Rows: view.On(l.db)}
	l.unattended, err = view.FindUnattended(ctx, r, view.UnattendedQuery{Queues: l.queued})
	if err != nil {
		return err
	}
	told := make(map[string]bool)
	for _, u := range l.unattended {
		has := map[view.UnattendedKind]string{view.FailedPast: "has failed", view.StuckPast: "has not moved"}[u.Kind]
		if has == "" || told[u.Consumer] || !exceeds(u.For, l.cfg.limits(u.Consumer, "").Unregistered) {
			continue
		}
		told[u.Consumer] = true
		l.add(signal{
			rule: RulePast, consumer: u.Consumer, count: 1, since: u.Since.UnixMicro(),
			says: "a backfill of " + u.Consumer + " " + has + ", and later events of its aggregates wait for it: for " + span(u.For),
		})
	}
	return nil
}

// nobodyDoes tells whether nobody works on what waits for a consumer.
func (l *look) nobodyDoes(kind view.UnattendedKind, consumer, eventType string) (view.Unattended, bool) {
	for _, u := range l.unattended {
		if u.Kind == kind && u.Consumer == consumer && u.EventType == eventType {
			return u, true
		}
	}
	return view.Unattended{}, false
}
