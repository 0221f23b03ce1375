package cli

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bluecone-go/bluecone/ops"
)

// paging says how much of a list to show.
type paging struct {
	limit  int
	cursor string
}

func addPaging(cmd *cobra.Command) *paging {
	p := &paging{}
	cmd.Flags().IntVar(&p.limit, "limit", 50, "at most so many rows")
	cmd.Flags().StringVar(&p.cursor, "cursor", "", "go on after an earlier list, as it says at its end")
	atLeast(cmd, "limit", &p.limit, 1)
	complete(cmd, "cursor")
	return p
}

// most is how many rows one query reads.
const most = 500

// pages reads pages until there are as many rows as wanted.
func pages[T any](p *paging, read func(cursor string, limit int) (ops.Page[T], error)) (ops.Page[T], error) {
	all := ops.Page[T]{Rows: []T{}, Next: p.cursor}
	for {
		next, err := read(all.Next, min(p.limit-len(all.Rows), most))
		if says, isCursor := cutCursor(err); isCursor {
			return all, usage("--cursor%s", says)
		}
		if err != nil {
			return all, err
		}
		all.Rows, all.Next, all.SearchedTo = append(all.Rows, next.Rows...), next.Next, next.SearchedTo
		if all.Next == "" || len(all.Rows) >= p.limit || !all.SearchedTo.IsZero() {
			return all, nil
		}
	}
}

// cutCursor tells whether the error is about the cursor that somebody gave, and what it says about it.
func cutCursor(err error) (says string, ok bool) {
	if !errors.Is(err, ops.ErrInvalid) {
		return "", false
	}
	return strings.CutPrefix(err.Error(), "ops: cursor")
}

// page prints a list and how it goes on.
func (c printer) page(v view, value any, next, what string, rows int) error {
	if rows > 0 || c.format == "json" || c.format == "csv" {
		if err := c.print(v, value); err != nil {
			return err
		}
	}
	switch {
	case next != "":
		c.note("There are more: --cursor %s", next)
	case rows == 0:
		c.note("No %s.", what)
	}
	return nil
}
