package simulation

import (
	"encoding/json"
	"fmt"

	"github.com/bluecone-go/bluecone/bus"
)

// happened is the event of the lives.
type happened struct {
	N    int    `json:"n"`   // number in the plan
	Seq  int    `json:"seq"` // within the aggregate, in the order of the commits
	Of   string `json:"of"`
	Seat string `json:"seat"`
}

func (happened) EventType() string              { return "it.happened" }
func (h happened) Aggregate() (kind, id string) { return "THING", h.Of }
func (h happened) plain() happened              { return h }

// keyed is one that may be saved again.
type keyed struct {
	happened
	Key int `json:"key"`
}

func (k keyed) IdempotencyKey() string { return fmt.Sprint("key-", k.Key) }

// more is an event of a type that only the newer release takes.
type more struct{ happened }

func (more) EventType() string { return "it.more" }

// reshaped is happened as the newer release writes it: another schema version of the same type.
type reshaped struct {
	Number int    `json:"number"`
	Place  int    `json:"place"`
	Of     string `json:"of"`
	Seat   string `json:"seat"`
}

func (reshaped) EventType() string              { return "it.happened" }
func (r reshaped) Aggregate() (kind, id string) { return "THING", r.Of }
func (reshaped) SchemaVersion() int             { return 2 }
func (r reshaped) plain() happened              { return happened{r.Number, r.Place, r.Of, r.Seat} }

// reshape makes version 2 of version 1.
func reshape(p json.RawMessage) (json.RawMessage, error) {
	var h happened
	if err := json.Unmarshal(p, &h); err != nil {
		return nil, err
	}
	return json.Marshal(reshaped{h.N, h.Seq, h.Of, h.Seat})
}

// event is one of these types.
type event interface {
	bus.Event
	plain() happened
}

// plain is the same message, of the type that all releases take.
func plain[E event](m bus.Message[E]) bus.Message[happened] {
	return bus.Message[happened]{Envelope: m.Envelope, Payload: m.Payload.plain(), Consumer: m.Consumer, Attempt: m.Attempt, Replay: m.Replay}
}
