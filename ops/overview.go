package ops

import (
	"time"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/outbox"
)

// Overview is the deployment in one look.
type Overview struct {
	At         time.Time                   `json:"at"`         // by the database's clock
	Health     Finding                     `json:"health"`     // "Healthy", or the worst that is known
	Events     map[outbox.Status]Count     `json:"events"`     // SENT is not counted
	Deliveries map[consumelog.Status]Count `json:"deliveries"` // SUCCESS and SKIPPED are not counted
	Oldest     time.Duration               `json:"oldestNs"`   // as outbox.Backlog.Oldest
	SavedRate  float64                     `json:"savedRate"`  // events saved per second, over the last minute
	DoneRate   float64                     `json:"doneRate"`   // deliveries done per second, over the last minute
	Series     Series                      `json:"series"`
	Consumers  []Consumer                  `json:"consumers"`
	Dead       []DeadGroup                 `json:"dead"` // the largest groups of failed and dead deliveries, at most 10
	Instances  []Instance                  `json:"instances"`
}

// Series is the recent activity, one value for each Step, oldest first. All have the same length.
type Series struct {
	Step  time.Duration `json:"stepNs"`
	Saved []float64     `json:"saved"` // events per second
	Done  []float64     `json:"done"`  // deliveries per second
	Open  []float64     `json:"open"`  // events that are not SENT
}

// State is what a consumer does.
type State string

// The states of a consumer.
const (
	// Running takes deliveries.
	Running State = "running"
	// Paused starts nothing until it is resumed, or its pause is over.
	Paused State = "paused"
	// CircuitOpen waits for a service that is away. Only the consumers of this process are known to.
	CircuitOpen State = "circuit open"
	// Unregistered has not been announced by any instance for a minute and a half.
	Unregistered State = "unregistered"
)

// Consumer is one consumer in the whole deployment.
type Consumer struct {
	Name        string        `json:"name"`                  // its durable key
	DisplayName string        `json:"displayName,omitempty"` // what logs and metrics call it, if that is not its key
	Types       []string      `json:"types"`
	State       State         `json:"state"`
	PausedUntil time.Time     `json:"pausedUntil,omitzero"` // zero: until it is resumed
	PausedBy    string        `json:"pausedBy,omitempty"`
	PauseReason string        `json:"pauseReason,omitempty"`
	SeenAt      time.Time     `json:"seenAt"` // when an instance last announced it
	Replayable  bool          `json:"replayable"`
	Waiting     Count         `json:"waiting"` // PENDING and PROCESSING
	Failed      Count         `json:"failed"`
	Dead        Count         `json:"dead"`
	Oldest      time.Duration `json:"oldestNs"` // age of the oldest delivery that waits
	LastSuccess time.Time     `json:"lastSuccess,omitzero"`
	LastError   string        `json:"lastError,omitempty"`
	LastErrorAt time.Time     `json:"lastErrorAt,omitzero"`
}

// DeadGroup is deliveries that failed for the same reason: same consumer, same event type, same
// message but for the values in it.
type DeadGroup struct {
	Fingerprint string    `json:"fingerprint"`
	Consumer    string    `json:"consumer"`
	EventType   string    `json:"eventType"`
	Error       string    `json:"error"`  // with the values masked
	Sample      string    `json:"sample"` // as one of them says it
	SampleEvent string    `json:"sampleEvent"`
	Dead        int64     `json:"dead"`
	Failed      int64     `json:"failed"`
	More        bool      `json:"more,omitempty"` // only the newest thousands of deliveries were looked at
	First       time.Time `json:"first"`
	Last        time.Time `json:"last"`
}

// JobState is a scheduled job in the whole deployment.
type JobState struct {
	Code         string    `json:"code"`
	Cron         string    `json:"cron,omitempty"`  // empty for a job that only releases before migration 0011 have
	Words        string    `json:"words,omitempty"` // the schedule in words, such as "every 5 minutes"
	Here         bool      `json:"here"`            // it is a job of this process
	Running      bool      `json:"running"`
	LockedBy     string    `json:"lockedBy,omitempty"`
	NextDue      time.Time `json:"nextDue,omitzero"`
	LastDue      time.Time `json:"lastDue,omitzero"`
	LastStarted  time.Time `json:"lastStarted,omitzero"`
	LastFinished time.Time `json:"lastFinished,omitzero"`
	LastStatus   string    `json:"lastStatus,omitempty"`
	Runs         []JobRun  `json:"runs"` // the latest 10, newest first
}

// JobRun is one run of a job.
type JobRun struct {
	Instance   string           `json:"instance"`
	Status     string           `json:"status"`
	StartedAt  time.Time        `json:"startedAt"`
	FinishedAt time.Time        `json:"finishedAt,omitzero"`
	Duration   time.Duration    `json:"durationNs"`
	Counts     map[string]int64 `json:"counts,omitempty"`
	Error      string           `json:"error,omitempty"`
}

// Instance is a publisher that has been seen within a day.
type Instance struct {
	Name        string        `json:"name"`
	Host        string        `json:"host"`
	Version     string        `json:"version"`
	Started     time.Time     `json:"started"`
	Seen        time.Time     `json:"seen"`
	Alive       bool          `json:"alive"` // seen within half a minute and not stopped
	Draining    bool          `json:"draining"`
	InFlight    int64         `json:"inFlight"`      // events that it has claimed and not yet settled
	ClockOffset time.Duration `json:"clockOffsetNs"` // its clock minus the database's
}

// AuditRow is one thing that somebody did, and why.
type AuditRow struct {
	ID      int64     `json:"id,string"`
	Actor   string    `json:"actor"`
	Action  string    `json:"action"`
	Target  string    `json:"target"`
	Reason  string    `json:"reason"`
	Details string    `json:"details,omitempty"`
	At      time.Time `json:"at"`
}

// AuditQuery selects audit rows, newest first.
type AuditQuery struct {
	Target string `json:"target,omitempty"` // event id, consumer, job or bulk operation
	Cursor string `json:"cursor,omitempty"`
	Limit  int    `json:"limit,omitempty"` // Default: 50, at most 500
}
