// Package eventrow reads rows of bc_outbox_event that may have been written by anybody, by hand too: one malformed row never spoils
// the reading of the others. It holds no statement.
package eventrow

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Row is a row as far as it could be read.
type Row struct {
	OutboxID                   int64
	ID, Type                   string
	AggregateType, AggregateID string
	TenantID, StoreID          int64
	SchemaVersion              int
	MaxAttempts                int
	Payload                    []byte
	Metadata                   map[string]string
	CreatedAt                  time.Time
	Status                     string
	RetryCount                 int
	LockVersion                int64
	DueAt                      int64  // next_retry_at in microseconds, 0 for none
	Extra                      int64  // what the query asked for besides
	Malformed                  string // why the row cannot be delivered; empty if it can
	Size                       int    // bytes of payload and metadata, of rows read by [ReadSized]
}

// Aggregate is the entity within which order holds.
type Aggregate struct {
	Tenant   int64 // 0 for none
	Type, ID string
}

// AggregateOf is the entity within which the event keeps its place.
func AggregateOf(r Row) Aggregate {
	return Aggregate{Tenant: r.TenantID, Type: r.AggregateType, ID: r.AggregateID}
}

const columns = 16

// Columns are those of the row e that make a [Row].
func Columns(d dialect.Dialect) string {
	return columnsWith(d, d.Text("e.event_payload"), d.Text("e.event_metadata"))
}

func columnsWith(d dialect.Dialect, payload, metadata string) string {
	return "e.id, e.event_id, e.event_type, e.aggregate_type, e.aggregate_id, e.tenant_id, e.store_id, e.schema_version, e.max_retry_count, " +
		payload + ", " + metadata + ", " + d.Micros("e.created_at") + ", e.status, e.retry_count, e.lock_version, " + d.Micros("e.next_retry_at")
}

// Read reads what is left of rows of [Columns], and perhaps one number more, which becomes Extra.
func Read(rows *sql.Rows) ([]Row, error) {
	return read(rows, parser{words: make(map[string]string)})
}

// ReadSized reads what is left of rows of [SizedColumns].
func ReadSized(rows *sql.Rows) ([]Row, error) {
	return read(rows, parser{words: make(map[string]string), sized: true})
}

func read(rows *sql.Rows, p parser) ([]Row, error) {
	names, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	p.raw = make([]sql.RawBytes, len(names))
	dest := make([]any, len(names))
	for i := range dest {
		dest[i] = &p.raw[i]
	}
	var out []Row
	for rows.Next() {
		if err := rows.Scan(dest...); err != nil {
			return nil, err
		}
		out = append(out, p.row())
	}
	return out, rows.Err()
}

// parser reads rows one after the other. What the driver has put into raw is only lent.
type parser struct {
	raw   []sql.RawBytes
	words map[string]string // such as stand in many rows
	sized bool              // the number more is the size, and long texts are not there
	errs  []error
}

func (p *parser) row() Row {
	p.errs = nil
	r := Row{
		OutboxID: p.number(0, "id"), ID: string(p.raw[1]), Type: p.word(2),
		AggregateType: p.word(3), AggregateID: string(p.raw[4]),
		TenantID: p.number(5, "tenant_id"), StoreID: p.number(6, "store_id"),
		SchemaVersion: int(p.number(7, "schema_version")), MaxAttempts: int(p.number(8, "max_retry_count")),
		Payload: bytes.Clone(p.raw[9]), CreatedAt: time.UnixMicro(p.number(11, "created_at")).UTC(),
		Status: p.word(12), RetryCount: int(p.number(13, "retry_count")), LockVersion: p.number(14, "lock_version"),
		DueAt: p.number(15, "next_retry_at"), Extra: p.number(columns, "extra"),
	}
	if p.sized {
		r.Size = int(r.Extra)
	}
	if !IsLate(&r) {
		p.errs = append(p.errs, readTexts(&r, p.raw[10]))
	}
	if err := errors.Join(p.errs...); err != nil {
		r.Malformed = err.Error()
	}
	return r
}

// readTexts reads what anybody may have written as JSON.
func readTexts(r *Row, metadata []byte) error {
	var bad []error
	if !json.Valid(r.Payload) {
		bad = append(bad, errors.New("event_payload is not valid JSON"))
	}
	var err error
	if r.Metadata, err = Metadata(metadata); err != nil {
		bad = append(bad, err)
	}
	return errors.Join(bad...)
}

func (p *parser) number(i int, column string) int64 {
	if i >= len(p.raw) || p.raw[i] == nil {
		return 0
	}
	n, err := strconv.ParseInt(string(p.raw[i]), 10, 64)
	if err != nil {
		p.errs = append(p.errs, fmt.Errorf("%s %q is not a whole number", column, p.raw[i]))
	}
	return n
}

// word keeps one copy of a text for all rows.
func (p *parser) word(i int) string {
	word, ok := p.words[string(p.raw[i])]
	if !ok {
		word = string(p.raw[i])
		p.words[word] = word
	}
	return word
}

// Metadata reads a JSON object. Values that are not strings, as people write them by
// hand ({"userId": 789}), are kept as their JSON text.
func Metadata(b []byte) (map[string]string, error) {
	if len(b) == 0 {
		return make(map[string]string), nil
	}
	var md map[string]string
	err := json.Unmarshal(b, &md)
	if err != nil || md == nil { // null
		md = make(map[string]string)
	}
	if err == nil {
		return md, nil
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal(b, &values); err != nil {
		return md, errors.New("event_metadata is not a JSON object")
	}
	for k, v := range values {
		var text string
		if json.Unmarshal(v, &text) != nil {
			text = string(bytes.TrimSpace(v))
		}
		md[k] = text
	}
	return md, nil
}
