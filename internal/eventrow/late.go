package eventrow

import (
	"errors"
	"fmt"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// inline is how many bytes of payload and metadata are read together with a row. Longer ones are read afterwards, as far as
// there is room for them.
const inline = 16 << 10

// SizedColumns are those of the row e that make a [Row], and the size of its payload and metadata. Long texts are left out.
func SizedColumns(d dialect.Dialect) string {
	size := d.Bytes("e.event_payload") + " + " + d.Bytes("e.event_metadata")
	short := func(column string) string {
		return fmt.Sprintf("CASE WHEN %s <= %d THEN %s END", size, inline, d.Text(column))
	}
	return columnsWith(d, short("e.event_payload"), short("e.event_metadata")) + ", " + size
}

// IsLate reports whether the texts of a row were left out.
func IsLate(r *Row) bool { return r.Size > inline }

// SetTexts adds texts of a row that were left out. The row keeps a copy.
func SetTexts(r *Row, payload, metadata []byte) {
	r.Payload = append([]byte{}, payload...)
	if err := readTexts(r, metadata); err != nil {
		r.Malformed = errors.Join(malformed(r.Malformed), err).Error()
	}
}

// malformed is what was wrong with a row already.
func malformed(why string) error {
	if why == "" {
		return nil
	}
	return errors.New(why)
}
