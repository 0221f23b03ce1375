package relay

import (
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"strconv"
	"strings"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"

	"github.com/bluecone-go/bluecone/bus"
)

// The extension attributes of CloudEvents that a relay writes and an inbox reads.
const (
	extPartitionKey  = "partitionkey" // tenant/type/id
	extSequence      = "sequence"     // the id of the row in the sender's outbox
	extTenant        = "tenantid"
	extSchemaVersion = "schemaversion"
	extTraceparent   = "traceparent"
	extTracestate    = "tracestate"
)

const structuredJSON = "application/cloudevents+json"

// message is an event as it is published, under an id of its own.
func message(e bus.Envelope, source, id string, isStructured bool) (Message, error) {
	m := Message{
		ID: id, Type: e.Type, TenantID: e.TenantID, AggregateType: e.AggregateType, AggregateID: e.AggregateID,
	}
	ce := event.New()
	ce.SetID(id)
	ce.SetSource(source)
	ce.SetType(e.Type)
	ce.SetSubject(e.AggregateType + "/" + e.AggregateID)
	ce.SetTime(e.CreatedAt)
	ce.SetExtension(extPartitionKey, m.Key())
	ce.SetExtension(extSequence, strconv.FormatInt(e.OutboxID, 10))
	ce.SetExtension(extSchemaVersion, strconv.Itoa(e.SchemaVersion))
	if e.TenantID != 0 {
		ce.SetExtension(extTenant, strconv.FormatInt(e.TenantID, 10))
	}
	for ext, key := range map[string]string{extTraceparent: bus.MetaTraceparent, extTracestate: bus.MetaTracestate} {
		if v := e.Metadata[key]; v != "" {
			ce.SetExtension(ext, v)
		}
	}
	if err := ce.SetData(event.ApplicationJSON, []byte(e.Data)); err != nil {
		return m, err
	}
	if err := ce.Validate(); err != nil {
		return m, fmt.Errorf("the event cannot be written as a CloudEvent: %w", err)
	}
	if isStructured {
		body, err := json.Marshal(ce)
		m.ContentType, m.Body = structuredJSON, body
		return m, err
	}
	m.Attributes = attributes(ce)
	m.ContentType, m.Body = event.ApplicationJSON, e.Data
	return m, nil
}

// attributes are all of an event but for datacontenttype, as text.
func attributes(ce event.Event) map[string]string {
	all := map[string]string{
		"specversion": ce.SpecVersion(), "id": ce.ID(), "source": ce.Source(), "type": ce.Type(), "subject": ce.Subject(),
	}
	if !ce.Time().IsZero() {
		all["time"] = types.FormatTime(ce.Time())
	}
	for name, v := range ce.Extensions() {
		all[name], _ = types.Format(v) // SetExtension has let only such in as have a text
	}
	return all
}

// Event is the CloudEvent that was received, in binary or structured mode. The attributes id and source may be missing:
// the inbox gives such an event its own. An error says what else is wrong with it.
func (r Received) Event() (event.Event, error) {
	media, _, err := mime.ParseMediaType(r.ContentType)
	if err != nil {
		media = strings.TrimSpace(r.ContentType)
	}
	if media == structuredJSON {
		return structured(r.Body)
	}
	if strings.HasPrefix(media, "application/cloudevents") {
		return event.Event{}, fmt.Errorf("content type %q: of structured CloudEvents only %s can be read", media, structuredJSON)
	}
	return binary(r)
}

// structured reads an event that is JSON as a whole.
func structured(body []byte) (event.Event, error) {
	ce := event.New()
	if err := json.Unmarshal(body, &ce); err != nil {
		return ce, fmt.Errorf("it is no CloudEvent in structured mode: %w", err)
	}
	return ce, nil
}

// binary reads an event whose attributes are headers.
func binary(r Received) (event.Event, error) {
	ce := event.New()
	attributes := maps.Clone(r.Attributes)
	if v := attributes["specversion"]; v != "" && v != "1.0" {
		return ce, fmt.Errorf("specversion %q: only 1.0 can be read", v)
	}
	delete(attributes, "specversion")
	delete(attributes, "datacontenttype")
	for name, set := range map[string]func(string){
		"id": ce.SetID, "source": ce.SetSource, "type": ce.SetType, "subject": ce.SetSubject, "dataschema": ce.SetDataSchema,
	} {
		if v := attributes[name]; v != "" {
			set(v)
		}
		delete(attributes, name)
	}
	if v := attributes["time"]; v != "" {
		at, err := types.ParseTime(v)
		if err != nil {
			return ce, fmt.Errorf("time %q is not a time by RFC 3339", v)
		}
		ce.SetTime(at)
	}
	delete(attributes, "time")
	for name, v := range attributes {
		ce.SetExtension(name, v)
	}
	if r.ContentType != "" {
		ce.SetDataContentType(r.ContentType)
	}
	ce.DataEncoded = r.Body
	for name, err := range ce.FieldErrors {
		return ce, fmt.Errorf("%s: %w", name, err)
	}
	return ce, nil
}
