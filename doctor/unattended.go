package doctor

import (
	"context"
	"time"

	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/store/view"
)

// unattendedWork finds what waits for consumers that run although nobody works on it.
func unattendedWork(ctx context.Context, x *exam) ([]Finding, error) {
	queues, err := store.Queued(ctx, x.db, x.d)
	if err != nil {
		return nil, err
	}
	work, err := view.FindUnattended(ctx, x.sql, view.UnattendedQuery{Queues: queues})
	var found []Finding
	for _, u := range work {
		v := values{
			"consumer": u.Consumer, "of": store.ReplayOf(u.Consumer), "n": counted(int(u.Count)), "type": u.EventType,
			"age": u.For.Round(time.Second).String(),
		}
		found = append(found, unattended(u.Kind, v)...)
	}
	return found, err
}

func unattended(kind view.UnattendedKind, v values) []Finding {
	switch kind {
	case view.GoneType:
		return warn("type_gone", "deliveries of {type} wait for the consumer {consumer}, and no running release of it takes the type: {n}",
			"start a release in which it takes the type, or skip the deliveries and retire the type: bluecone consumers retire --type", v)
	case view.GoneReplay:
		return warn("replay_gone", "replays wait for the consumer {of}, of which no instance runs replays: {n}",
			"start a release in which it is Replayable, or skip them: bluecone events skip EVENT-ID --consumer {consumer}", v)
	case view.FailedPast:
		return warn("past_failed", "a backfill of the consumer {consumer} failed {age} ago, and later events of its aggregates wait for it",
			"see why (bluecone bulk list), then resume or cancel it: bluecone bulk resume, bluecone bulk cancel", v)
	case view.StuckPast:
		return warn("past_stuck", "a backfill of the consumer {consumer} has not moved for {age}, and later events of its aggregates wait for it",
			"see that a process calls ops.Run, or, for StartFrom, that a publisher of a release that knows it has the consumer; "+
				"without the past: bluecone bulk cancel", v)
	}
	return nil
}
