package console

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/bluecone-go/bluecone/ops"
)

// grownError means that there are more events than somebody confirmed.
type grownError struct{ plan *bulkPlan }

func (e *grownError) Error() string {
	return fmt.Sprintf("confirm must be the number of events: there are %d now", e.plan.Count.Count)
}

// startBulk starts what was planned, if the number of events was typed and has not grown since.
func (c acts) startBulk(r *http.Request, in *reader, op ops.Operation) (outcome, error) {
	confirm := in.number("confirm", 0, 1<<62)
	p, err := c.plan(r, in.Values)
	if err := errors.Join(err, in.err()); err != nil {
		return outcome{}, err
	}
	if err := mayDo(r, p.Action); err != nil {
		return outcome{}, err
	}
	counted := strings.TrimSpace(in.Get("counted"))
	if counted != "" && counted != strconv.FormatInt(confirm, 10) || in.Get("confirm") == "" || p.Count.Count > confirm {
		p.Grown = true
		return outcome{}, &refusal{http.StatusConflict, "error.grown", &grownError{p}}
	}
	b, err := c.ops.StartBulk(r.Context(), op, p.NewBulk)
	return outcome{Changed: int(p.Count.Count), Result: b, go2: "bulk?id=" + url.QueryEscape(b.ID)}, err
}

// mayDo refuses the action of a bulk operation to those who lack what it needs besides [Bulk].
func mayDo(r *http.Request, a ops.Action) error {
	needs := map[ops.Action][]Permission{
		ops.ActionRetry: {Retry}, ops.ActionReopen: {Skip, Discard}, ops.ActionSkip: {Skip}, ops.ActionDiscard: {Discard},
		ops.ActionReplay: {Replay}, ops.ActionBackfill: {Replay},
	}[a]
	for _, p := range needs {
		if !principalOf(r).Can(p) {
			return forbidden(p)
		}
	}
	if len(needs) == 0 {
		return invalid(fmt.Errorf("action %q: nobody may do it here", a))
	}
	return nil
}

func (c acts) cancelBulk(r *http.Request, in *reader, op ops.Operation) (outcome, error) {
	return outcome{Changed: 1}, c.ops.CancelBulk(r.Context(), op, in.Get("id"))
}

func (c acts) resumeBulk(r *http.Request, in *reader, op ops.Operation) (outcome, error) {
	b, err := c.ops.Bulk(r.Context(), in.Get("id"))
	if err != nil {
		return outcome{}, err
	}
	if err := mayDo(r, b.Action); err != nil {
		return outcome{}, err
	}
	return outcome{Changed: 1}, c.ops.ResumeBulk(r.Context(), op, b.ID)
}
