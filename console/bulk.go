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
func (c *Console) startBulk(r *http.Request, in *reader, op ops.Operation) (outcome, error) {
	confirm := in.number("confirm", 0, 1<<62)
	p, err := c.plan(r, in.Values)
	if err := errors.Join(err, in.err()); err != nil {
		return outcome{}, err
	}
	if !principalOf(r).Can(permissionFor(p.Action)) {
		return outcome{}, &refusal{http.StatusForbidden, "error.forbidden", fmt.Errorf("this needs the permission %s as well", permissionFor(p.Action))}
	}
	counted := strings.TrimSpace(in.Get("counted"))
	if counted != "" && counted != strconv.FormatInt(confirm, 10) || in.Get("confirm") == "" || p.Count.Count > confirm {
		p.Grown = true
		return outcome{}, &refusal{http.StatusConflict, "error.grown", &grownError{p}}
	}
	b, err := c.ops.StartBulk(r.Context(), op, p.NewBulk)
	return outcome{Changed: int(p.Count.Count), Result: b, go2: "bulk?id=" + url.QueryEscape(b.ID)}, err
}

// permissionFor is what the action of a bulk operation needs besides [Bulk].
func permissionFor(a ops.Action) Permission {
	return map[ops.Action]Permission{ops.ActionRetry: Retry, ops.ActionSkip: Skip, ops.ActionDiscard: Discard, ops.ActionReplay: Replay}[a]
}

func (c *Console) cancelBulk(r *http.Request, in *reader, op ops.Operation) (outcome, error) {
	return outcome{Changed: 1}, c.ops.CancelBulk(r.Context(), op, in.Get("id"))
}

func (c *Console) resumeBulk(r *http.Request, in *reader, op ops.Operation) (outcome, error) {
	b, err := c.ops.Bulk(r.Context(), in.Get("id"))
	if err != nil {
		return outcome{}, err
	}
	if !principalOf(r).Can(permissionFor(b.Action)) {
		return outcome{}, &refusal{http.StatusForbidden, "error.forbidden", fmt.Errorf("this needs the permission %s as well", permissionFor(b.Action))}
	}
	return outcome{Changed: 1}, c.ops.ResumeBulk(r.Context(), op, b.ID)
}
