package relay

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
)

func envelope() bus.Envelope {
	return bus.Envelope{
		OutboxID: 42, ID: "0198c0de-0000-7000-8000-000000000001", Type: "order.paid", AggregateType: "ORDER", AggregateID: "7/ü",
		TenantID: 3, SchemaVersion: 2, Data: json.RawMessage(`{"totalCents":12345678901234567890,  "x":"<>"}`),
		Metadata:  bus.Metadata{bus.MetaTraceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", bus.MetaUserID: "9"},
		CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC),
	}
}

func TestBothModesCarryTheSameEvent(t *testing.T) {
	t.Parallel()
	e := envelope()
	plain, err := message(e, "/bluecone/shop", e.ID, false)
	require.NoError(t, err)
	require.Equal(t, "3/ORDER/7/ü", plain.Key())
	require.Equal(t, map[string]string{
		"specversion": "1.0", "id": e.ID, "source": "/bluecone/shop", "type": "order.paid", "subject": "ORDER/7/ü",
		"time": "2026-01-02T03:04:05.678901Z", "partitionkey": "3/ORDER/7/ü", "sequence": "42", "schemaversion": "2", "tenantid": "3",
		"traceparent": e.Metadata[bus.MetaTraceparent],
	}, plain.Attributes, "and nothing of the user's")
	require.Equal(t, string(e.Data), string(plain.Body), "the payload as it was stored")

	whole, err := message(e, "/bluecone/shop", e.ID, true)
	require.NoError(t, err)
	require.Empty(t, whole.Attributes)
	require.Equal(t, "application/cloudevents+json", whole.ContentType)

	for _, m := range []Message{plain, whole} {
		ce, err := Received{Attributes: m.Attributes, ContentType: m.ContentType, Body: m.Body}.Event()
		require.NoError(t, err)
		require.NoError(t, ce.Validate())
		require.JSONEq(t, string(e.Data), string(ce.Data()))
		require.Contains(t, string(ce.Data()), "12345678901234567890", "no number was rounded")
		require.Equal(t, plain.Attributes, attributes(ce))
	}
}

func TestWhatIsNoCloudEventSaysWhy(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]Received{
		"it is no CloudEvent in structured mode": {ContentType: "application/cloudevents+json; charset=utf-8", Body: []byte("{")},
		"of structured CloudEvents only":         {ContentType: "application/cloudevents+avro"},
		"only 1.0 can be read":                   {Attributes: map[string]string{"specversion": "0.3"}},
		"is not a time by RFC 3339":              {Attributes: map[string]string{"time": "yesterday"}},
	} {
		_, err := r.Event()
		require.ErrorContains(t, err, want)
	}
}

func TestHeadersAreToldApart(t *testing.T) {
	t.Parallel()
	var r Received
	r.Add("ce-", "Ce-Type", "order.paid")
	r.Add("ce-", "ce-no-attribute", "1")
	r.Add("ce-", "ce-", "2")
	r.Add("ce-", ReplayOf, "3")
	require.Equal(t, map[string]string{"type": "order.paid"}, r.Attributes)
	require.Equal(t, map[string]string{"ce-no-attribute": "1", "ce-": "2", ReplayOf: "3"}, r.Headers)
}
