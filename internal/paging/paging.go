// Package paging is how jobs page through business tables: by the database's clock, and in the database's order of keys.
package paging

import (
	"fmt"
	"strings"
	"time"

	"github.com/uptrace/bun/schema"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Page is the end of a SELECT, from a condition on, as an argument for a "?" of bun's.
type Page struct {
	Since   string        // the column that tells the age of a row
	Key     string        // the column of the keys, by which rows are sorted, with the name of its table
	Younger time.Duration // than that rows are; 0 for no limit
	Older   time.Duration // than that rows are, or as old
	After   string        // only rows whose key follows this one; empty for the first page
	Limit   int
}

// AppendQuery implements [schema.QueryAppender].
func (p Page) AppendQuery(gen schema.QueryGen, b []byte) ([]byte, error) {
	d, err := dialect.Named(gen.Dialect().Name())
	if err != nil {
		return nil, err
	}
	if !strings.Contains(p.Key, ".") { // or PostgreSQL sorts by what the SELECT makes of it: by texts, if it is SELECT id::text
		return nil, fmt.Errorf("the key %s needs the name or alias of its table before it, such as t.%s", text.Quote(p.Key), p.Key)
	}
	query, args := p.Since+" <= "+d.After, []any{-dialect.Micro(p.Older)}
	if p.Younger > 0 {
		query, args = query+" AND "+p.Since+" > "+d.After, append(args, -dialect.Micro(p.Younger))
	}
	if p.After != "" { // a text, which the database takes for what the column holds; on the first page there is none
		query, args = query+" AND "+p.Key+" > ?", append(args, p.After)
	}
	return gen.AppendQuery(b, query+" ORDER BY "+p.Key+" LIMIT ?", append(args, p.Limit)...), nil
}

// Age is the age, in microseconds by the database's clock, of rows since the time in a column, as an argument for a "?" of bun's.
type Age struct{ Since string }

// AppendQuery implements [schema.QueryAppender].
func (a Age) AppendQuery(gen schema.QueryGen, b []byte) ([]byte, error) {
	d, err := dialect.Named(gen.Dialect().Name())
	if err != nil {
		return nil, err
	}
	return append(b, "("+d.Micros(d.Now)+" - "+d.Micros(a.Since)+")"...), nil
}

// Cursor sees to it that pages end. It does not compare keys: only the database knows their order.
type Cursor struct{ ends map[string]bool }

// Next notes the key that a full page has ended with. It fails if a page has ended there before: then Find does not begin
// behind the key that it was given.
func (c *Cursor) Next(after, last string) error {
	if c.ends[last] || last == "" {
		return fmt.Errorf("find: the page after %s ends with %s, where a page has ended before: it must have what follows Query.After in the "+
			"order of keys",
			text.Quote(after), text.Quote(last))
	}
	if c.ends == nil {
		c.ends = make(map[string]bool)
	}
	c.ends[last] = true
	return nil
}
