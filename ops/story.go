package ops

import (
	"context"
	"slices"
	"time"

	"github.com/bluecone-go/bluecone/outbox"
)

// Story is everything known about a business key: the events of the entity and what they caused.
type Story struct {
	Key       string    `json:"key"`
	Findings  []Finding `json:"findings"`            // the diagnosis, worst first; never nil
	Events    []Event   `json:"events"`              // in the order they were saved, with deliveries and attempts; never nil
	Consumers []string  `json:"consumers"`           // the columns of the matrix; its rows are Events
	Moments   []Moment  `json:"moments"`             // one merged timeline, oldest first; never nil
	Sections  []Facts   `json:"sections"`            // of the host's modules
	Truncated bool      `json:"truncated,omitempty"` // there are more events than shown
	// Reservations are those in the ledger of the events, and of the event whose id the key is.
	Reservations []Reservation `json:"reservations,omitempty"`
}

// The kinds of moments that bluecone itself knows. Sections may add their own.
const (
	MomentSaved    = "saved"
	MomentClaimed  = "claimed" // leased by an instance now
	MomentSent     = "sent"
	MomentDone     = "done"   // a delivery succeeded
	MomentWaits    = "waits"  // a delivery waits for its consumer
	MomentFailed   = "failed" // an attempt did not succeed
	MomentDead     = "dead"
	MomentSkipped  = "skipped"
	MomentReleased = "released" // by the reaper
	MomentRepaired = "repaired" // by a consistency check
	MomentOperator = "operator" // what somebody did

	MomentReserved  = "reserved"  // in the ledger: nobody sees the event yet
	MomentConfirmed = "confirmed" // a reservation became an event
	MomentCanceled  = "canceled"  // a reservation was given up
)

// Moment is one thing that happened.
type Moment struct {
	At       time.Time `json:"at"`
	Kind     string    `json:"kind"`
	EventID  string    `json:"eventId,omitempty"`
	Consumer string    `json:"consumer,omitempty"`
	Actor    string    `json:"actor,omitempty"` // instance or person
	Says     string    `json:"says"`
	TraceID  string    `json:"traceId,omitempty"`
	TraceURL string    `json:"traceUrl,omitempty"`
	// Args are the values in the sentence, by name, for translations. Times are RFC 3339, in UTC.
	Args map[string]string `json:"args,omitempty"`
}

// Level says how bad a finding is.
type Level string

// The levels of a finding.
const (
	OK   Level = "OK"
	Info Level = "INFO"
	Warn Level = "WARN"
	Bad  Level = "BAD"
)

// Finding is one sentence of what is wrong, and one of what to do.
type Finding struct {
	Rule     string `json:"rule"` // durable code, such as "dead"
	Level    Level  `json:"level"`
	Says     string `json:"says"`
	Remedy   string `json:"remedy,omitempty"`
	EventID  string `json:"eventId,omitempty"`
	Consumer string `json:"consumer,omitempty"`
	// Args are the values in the sentence, by name, for translations. Times are RFC 3339, in UTC.
	Args map[string]string `json:"args,omitempty"`
}

// Section is what a module of the host adds to the story of a business key: its own view of the
// entity. It answers nil if it knows nothing of the key. An error or a panic of it is a finding of the story. [Language]
// tells which language it should speak.
type Section func(ctx context.Context, key string) (*Facts, error)

// Facts is a section of a story.
type Facts struct {
	Title    string    `json:"title"`
	Rows     []Fact    `json:"rows"`
	Locks    []Lock    `json:"locks,omitempty"`    // what is held for the entity now; one held too long becomes a finding
	Amounts  []Amount  `json:"amounts,omitempty"`  // what has to add up; what does not becomes a finding
	Moments  []Moment  `json:"moments,omitempty"`  // merged into the timeline
	Findings []Finding `json:"findings,omitempty"` // what the module itself sees to be wrong
	Missing  []string  `json:"missing,omitempty"`  // what has to have happened and has not, a sentence each
	Keys     []string  `json:"keys,omitempty"`     // further aggregate ids whose events belong to the story
}

// Lock is something that is held for the entity until its process goes on.
type Lock struct {
	Name  string        `json:"name"`  // such as "12.50 of the wallet of user 7"
	Since time.Time     `json:"since"` // it is held
	TTL   time.Duration `json:"ttlNs"` // after which the reaper may release it
	// Consumer is the one that makes and settles the lock: its unfinished deliveries hold it. "" means that anybody's do.
	Consumer string `json:"consumer,omitempty"`
}

// isHeldBy tells whether the reaper leaves the lock alone because of the event.
func (l Lock) isHeldBy(e Event) bool {
	own := slices.IndexFunc(e.Deliveries, func(d Delivery) bool { return d.Consumer == l.Consumer })
	switch {
	case e.Status == outbox.StatusSent:
		return false
	case l.Consumer == "":
		return true
	case own >= 0:
		return !e.Deliveries[own].Status.Done()
	}
	return e.Status != outbox.StatusFailed && e.Status != outbox.StatusDead
}

// Amount is a number that is known from two sides, in its smallest unit.
type Amount struct {
	Name string `json:"name"` // such as "wallet cents"
	Want int64  `json:"want,string"`
	Have int64  `json:"have,string"`
	Says string `json:"says,omitempty"` // where the two come from: "the order says 500, the ledger 300"
}

// Fact is one line of a section. One without a value is not shown.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}
