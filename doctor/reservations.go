package doctor

import (
	"context"
	"strconv"
	"time"

	"github.com/bluecone-go/bluecone/internal/store"
)

// answerIn is how long after the end of its time to live a reservation may wait for its producer, as for the alert reservation.
const answerIn = 2 * time.Minute

// reservations finds events that are reserved in the ledger and whose producers do not say what became of them.
func reservations(ctx context.Context, x *exam) ([]Finding, error) {
	waiting, err := store.NewConditions(x.d).Unanswered(ctx, x.db, most)
	if err != nil {
		return nil, err
	}
	now, err := x.now(ctx)
	var found []Finding
	for _, r := range waiting {
		if age := now.Sub(time.UnixMicro(r.Since)); age > answerIn {
			found = append(found, warn("reservation_waits", "no producer says what became of {n} reserved events of the type {type}: the time to "+
				"live of the first was over {age} ago, and no consumer sees them",
				"see that a ledger runs and reaches the producers, or confirm or cancel them (bluecone reservations list)",
				values{"n": strconv.Itoa(int(r.Count)), "type": r.EventType, "age": age.Round(time.Second).String()})...)
		}
	}
	return found, err
}
