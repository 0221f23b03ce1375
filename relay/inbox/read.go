package inbox

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/uuid"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/relay"
)

// namespace is that of the ids that an inbox makes.
var namespace = uuid.NewSHA1(uuid.NameSpaceURL, //nolint:gochecknoglobals // a constant
	[]byte("https://github.com/bluecone-go/bluecone#inbox"))

// made is what the inbox makes of a CloudEvent by itself.
func (s sink) made(r relay.Received, ce event.Event, spare string) (Event, error) {
	e := Event{ID: s.id(r, ce, spare), Type: ce.Type(), SchemaVersion: 1, Payload: ce.Data(), Metadata: bus.Metadata{}}
	if e.Type == "" {
		return e, fmt.Errorf("it has no attribute type, so it is no CloudEvent")
	}
	if len(e.Payload) == 0 {
		e.Payload = []byte("null")
	}
	if media := ce.DataMediaType(); media != "" && media != "application/json" && media != "text/json" && !strings.HasSuffix(media, "+json") {
		return e, fmt.Errorf("its content type is %q: only JSON can be read", media)
	}
	e.AggregateType, e.AggregateID = aggregateOf(ce, e.ID)
	extensions := ce.Extensions()
	for name, set := range map[string]func(n int64){
		"tenantid":      func(n int64) { e.TenantID = n },
		"schemaversion": func(n int64) { e.SchemaVersion = int(n) },
	} {
		v, ok := extensions[name]
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(fmt.Sprint(v), 10, 64)
		if err != nil {
			return e, fmt.Errorf("its attribute %s is %.60q: it must be a whole number", name, fmt.Sprint(v))
		}
		set(n)
	}
	for name, key := range map[string]string{"traceparent": bus.MetaTraceparent, "tracestate": bus.MetaTracestate} {
		if v, ok := extensions[name].(string); ok {
			e.Metadata[key] = v
		}
	}
	if parts := strings.Split(e.Metadata[bus.MetaTraceparent], "-"); len(parts) > 1 {
		e.Metadata[bus.MetaTraceID] = parts[1]
	}
	if source := ce.Source(); source != "" {
		e.Metadata["ceSource"] = source
	}
	return e, nil
}

// aggregateOf is the entity of an event: its subject, written TYPE/id by a relay. A foreign event without such a subject keeps order
// within its partition key, or else has an entity of its own.
func aggregateOf(ce event.Event, id string) (kind, of string) {
	if kind, of, ok := strings.Cut(ce.Subject(), "/"); ok && kind != "" && of != "" && isName(kind) {
		return kind, of
	}
	for _, v := range []string{ce.Subject(), fmt.Sprint(ce.Extensions()["partitionkey"])} {
		if v != "" && v != "<nil>" {
			return "SUBJECT", v
		}
	}
	return "MESSAGE", id
}

// id is the event_id. That of a bluecone is its own, and so is any UUID; what others write is unique within its source only.
func (s sink) id(r relay.Received, ce event.Event, spare string) string {
	id := ce.ID()
	if original := r.Headers[relay.ReplayOf]; original != "" && !s.cfg.AcceptReplays {
		id = original
	}
	if id == "" && s.cfg.ID != nil {
		if id = s.cfg.ID(r); id != "" {
			return id
		}
	}
	switch {
	case id == "" && spare != "":
		return spare
	case id == "" && r.Offset == "":
		return uuid.NewString()
	case id == "":
		return s.position(r)
	case strings.HasPrefix(ce.Source(), "/bluecone/") || uuid.Validate(id) == nil:
		return id
	}
	return uuid.NewSHA1(namespace, []byte(ce.Source()+"\x00"+id)).String()
}

// position is an id of where a message stands. Two brokers may have topics of one name, so the inbox belongs to it; and a topic that is
// deleted and made anew has other messages at the same places, so their time does.
func (s sink) position(r relay.Received) string {
	at := ""
	if n := nanos(r.Time); n != 0 {
		at = strconv.FormatInt(n, 10)
	}
	return uuid.NewSHA1(namespace, []byte(strings.Join([]string{s.cfg.Source, r.Topic, r.Partition, r.Offset, at}, "\x00"))).String()
}

// nanos is a time in nanoseconds since the epoch, 0 for none.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// mapped asks the user's function. A panic in it is about this message.
func (s sink) mapped(ce event.Event, e Event) (made Event, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("inbox.Config.Map panicked with a %T", v) // the value itself may be of the payload
		}
	}()
	return s.cfg.Map(ce, e)
}

// origin is the metadata of an event with where it comes from.
func (s sink) origin(r relay.Received, md map[string]string) map[string]string {
	out := maps.Clone(md)
	if out == nil {
		out = make(map[string]string)
	}
	out[spi.MetaOriginSource], out[spi.MetaOriginPartition] = s.cfg.Source, clip(r.Partition, 200)
	if r.Offset != "" {
		out[spi.MetaOriginOffset] = clip(r.Offset, 64)
	}
	return out
}

// undecodable is the event as which a message lands that cannot be read. A redelivery is the same event.
func (s sink) undecodable(r relay.Received, why error) spi.Event {
	id := s.position(r)
	if r.Offset == "" {
		content, _ := json.Marshal([]any{s.cfg.Source, r.Topic, r.Attributes, r.Headers, r.Body}) // strings and bytes can be encoded
		id = uuid.NewSHA1(namespace, content).String()
	}
	payload, _ := json.Marshal(kept(r, why)) // likewise
	return spi.Event{
		ID: id, Type: Undecodable, AggregateType: "INBOX", AggregateID: id, SchemaVersion: 1, Payload: payload,
		Metadata: s.origin(r, nil), Dead: "the message could not be read: " + clip(why.Error(), 500),
	}
}

// clip makes a text storable and short.
func clip(s string, most int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s[:min(len(s), most)], "\uFFFD"), "\x00", "")
	return s
}
