package console

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/ops"
)

// action is something to do. Pages post it as a form, programs post the same fields as JSON.
type action struct {
	name  string
	needs Permission
	takes []string // its own fields in the API, beside [ofEveryAction]
	// do does it. An action that only looks, and answers with a page of its own, has show instead.
	do   func(r *http.Request, in *reader, op ops.Operation) (outcome, error)
	show func(w http.ResponseWriter, r *http.Request, in *reader, op ops.Operation) error
}

// outcome is what an action did.
type outcome struct {
	Changed int    `json:"changed"`          // how many
	Passed  int    `json:"passed,omitempty"` // how many were not in a state that allows it
	Result  any    `json:"result,omitempty"`
	theirs  error  // what one of several events answered that belongs to another tenant
	go2     string // page to show afterwards, if not the one the form was on
}

// acts are what changes a deployment.
type acts struct{ reads }

func (c *Console) actions() []action {
	do := acts{c.reads}
	return []action{
		{name: "retry", needs: Retry, do: do.retry, takes: []string{"id", "consumer"}},
		{name: "reopen", needs: Skip, do: do.reopen, takes: []string{"id", "consumer"}},
		{name: "skip", needs: Skip, do: do.skip, takes: []string{"id", "consumer", "confirm"}},
		{name: "discard", needs: Discard, do: do.discard, takes: []string{"id", "confirm"}},
		{name: "replay", needs: Replay, do: do.replay, takes: []string{"id", "consumer", "confirm"}},
		{name: "pause", needs: Pause, do: do.pause, takes: []string{"consumer", "minutes"}},
		{name: "resume", needs: Pause, do: do.resume, takes: []string{"consumer"}},
		{name: "retire", needs: Retire, do: do.retire, takes: []string{"consumer", "eventType"}},
		{name: "run-job", needs: RunJob, do: do.runJob, takes: []string{"code"}},
		{name: "publish", needs: Publish, do: do.publish, takes: []string{"eventType", "payload", "tenantId", "storeId"}},
		{name: "publish-check", needs: Publish, show: c.publishCheck, takes: []string{"eventType", "payload", "tenantId", "storeId"}},
		{name: "payload", needs: PayloadView, show: c.payload, takes: []string{"id"}},
		{
			name: "bulk", needs: Bulk, do: do.startBulk,
			takes: append(filterNames(), "action", "forConsumer", "rate", "spreadSeconds", "confirm", "counted"),
		},
		{name: "bulk-cancel", needs: Bulk, do: do.cancelBulk, takes: []string{"id"}},
		{name: "bulk-resume", needs: Bulk, do: do.resumeBulk, takes: []string{"id"}},
	}
}

// doForm does what a form asks for, and shows the page it was on.
func (c *Console) doForm(a action) func(w http.ResponseWriter, r *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		if err := sent(r, "application/x-www-form-urlencoded"); err != nil {
			return err
		}
		if err := r.ParseForm(); err != nil {
			return unread("the form", err)
		}
		hasBody(w)
		in := &reader{Values: r.PostForm}
		if a.show != nil {
			return a.show(w, r, in, operation(r, in))
		}
		out, err := c.act(a, r, in)
		if grown := (*grownError)(nil); errors.As(err, &grown) {
			v := c.viewOf(r, "bulk-new", grown.plan)
			v.Self = ""
			c.render(w, r, http.StatusConflict, v)
			return nil
		}
		if err != nil {
			return err
		}
		to := out.go2
		if to == "" {
			to = back(in.Get("back"))
		}
		w.Header().Set("Location", afterwards(to, a.name, out, in.Get("lang")))
		w.WriteHeader(http.StatusSeeOther)
		return nil
	}
}

// doAPI does what a JSON body asks for.
func (c *Console) doAPI(a action) func(w http.ResponseWriter, r *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		if err := sent(r, "application/json"); err != nil {
			return err
		}
		values, err := a.decode(r.Body)
		if err != nil {
			return err
		}
		hasBody(w)
		in := &reader{Values: values}
		if a.show != nil {
			return a.show(w, r, in, operation(r, in))
		}
		out, err := c.act(a, r, in)
		if err == nil {
			answerJSON(w, http.StatusOK, "application/json", out)
		}
		return err
	}
}

// act does it once, however often the same operation is sent.
func (c *Console) act(a action, r *http.Request, in *reader) (outcome, error) {
	op := operation(r, in)
	if strings.TrimSpace(op.Reason) == "" {
		return outcome{}, invalid(errors.New("reason is missing: say why, it is kept in the audit log"))
	}
	id := in.Get("op")
	if len(id) > maxOperationID {
		return outcome{}, invalid(fmt.Errorf("op is longer than %d bytes", maxOperationID))
	}
	do := func() (outcome, error) {
		out, err := a.do(r, in, op)
		if out.theirs != nil {
			c.noteAttempt(r, out.theirs)
		}
		return out, err
	}
	if id == "" {
		return do()
	}
	return c.once.do(op.Actor+"\x00"+id, a.name+"\x00"+contentOf(in.Values), do)
}

func operation(r *http.Request, in *reader) ops.Operation {
	return ops.Operation{Actor: principalOf(r).Name, Reason: strings.TrimSpace(in.Get("reason"))}
}

// back is the page a form was on, if it is one of ours: never another site.
func back(to string) string {
	u, err := url.Parse(to)
	if err != nil || u.IsAbs() || u.Host != "" || u.User != nil || strings.ContainsAny(u.Path, "/\\:") && u.Path != "./" {
		return "./"
	}
	if u.Path == "" {
		u.Path = "./"
	}
	return (&url.URL{Path: u.Path, RawQuery: u.RawQuery}).String()
}

// afterwards is the address of a page that says what was done.
func afterwards(to, action string, out outcome, lang string) string {
	path, query, _ := strings.Cut(to, "?")
	q, err := url.ParseQuery(query)
	if err != nil {
		q = url.Values{}
	}
	q.Set("done", action)
	q.Set("n", strconv.Itoa(out.Changed))
	q.Del("passed")
	if out.Passed > 0 {
		q.Set("passed", strconv.Itoa(out.Passed))
	}
	if lang != "" {
		q.Set("lang", lang)
	}
	return path + "?" + q.Encode()
}

func (c acts) retry(r *http.Request, in *reader, op ops.Operation) (outcome, error) {
	return each(in, func(id string) error { return c.ops.Retry(r.Context(), op, id, in.Values["consumer"]...) })
}

// reopen undoes a skip or a discard, so it needs the permissions for both.
func (c acts) reopen(r *http.Request, in *reader, op ops.Operation) (outcome, error) {
	if !principalOf(r).Can(Discard) {
		return outcome{}, forbidden(Discard)
	}
	return each(in, func(id string) error { return c.ops.Reopen(r.Context(), op, id, in.Get("consumer")) })
}

func (c acts) skip(r *http.Request, in *reader, op ops.Operation) (outcome, error) {
	if err := in.confirmed(len(in.Values["id"])); err != nil {
		return outcome{}, err
	}
	return each(in, func(id string) error { return c.ops.Skip(r.Context(), op, id, in.Get("consumer")) })
}

func (c acts) discard(r *http.Request, in *reader, op ops.Operation) (outcome, error) {
	if err := in.confirmed(len(in.Values["id"])); err != nil {
		return outcome{}, err
	}
	return each(in, func(id string) error { return c.ops.Discard(r.Context(), op, id) })
}

func (c acts) replay(r *http.Request, in *reader, op ops.Operation) (outcome, error) {
	if err := in.confirmed(len(in.Values["id"])); err != nil {
		return outcome{}, err
	}
	return each(in, func(id string) error { return c.ops.Replay(r.Context(), op, id, in.Get("consumer")) })
}

// confirmed checks that the number of what will be changed was typed.
func (in *reader) confirmed(n int) error {
	if strings.TrimSpace(in.Get("confirm")) != strconv.Itoa(n) {
		return invalid(fmt.Errorf("confirm must be %d, the number of events that this changes", n))
	}
	return nil
}

// each does something to every event that was named. If there is one only, it must succeed.
func each(in *reader, do func(id string) error) (outcome, error) {
	ids := in.Values["id"]
	if len(ids) == 0 || len(ids) > maxSelected {
		return outcome{}, invalid(fmt.Errorf("id: name between 1 and %d events", maxSelected))
	}
	var out outcome
	for _, id := range ids {
		err := do(id)
		switch {
		case err == nil:
			out.Changed++
		case errors.Is(err, ops.ErrNotFound) && len(ids) > 1:
			out.Passed++
			if errors.Is(err, ops.ErrOtherTenant) {
				out.theirs = err
			}
		default:
			return out, err
		}
	}
	return out, nil
}

func (c acts) pause(r *http.Request, in *reader, op ops.Operation) (outcome, error) {
	minutes := in.number("minutes", 0, 365*24*60)
	if err := in.err(); err != nil {
		return outcome{}, err
	}
	return outcome{Changed: 1}, c.ops.Pause(r.Context(), op, in.Get("consumer"), time.Duration(minutes)*time.Minute)
}

func (c acts) resume(r *http.Request, in *reader, op ops.Operation) (outcome, error) {
	all, err := c.ops.Consumers(r.Context())
	if err != nil {
		return outcome{}, err
	}
	out, consumer := outcome{Changed: 1}, in.Get("consumer")
	for _, is := range all {
		if is.Name == consumer || is.DisplayName == consumer {
			if is.State == ops.Running || is.State == ops.CircuitOpen { // an unregistered one may be paused, too
				out.Changed = 0
			}
		}
	}
	return out, c.ops.Resume(r.Context(), op, consumer)
}

func (c acts) retire(r *http.Request, in *reader, op ops.Operation) (outcome, error) {
	return outcome{Changed: 1}, c.ops.Retire(r.Context(), op, in.Get("consumer"), in.Values["eventType"]...)
}

func (c acts) runJob(r *http.Request, in *reader, op ops.Operation) (outcome, error) {
	counts, ran, err := c.ops.RunJob(r.Context(), op, in.Get("code"))
	out := outcome{Result: map[string]any{"ran": ran, "counts": counts}}
	if ran {
		out.Changed = 1
	}
	return out, err
}

func (in *reader) manual() ops.Manual {
	return ops.Manual{
		EventType: in.Get("eventType"), Payload: in.Get("payload"), TenantID: in.number("tenantId", 0, 1<<62),
		StoreID: in.number("storeId", 0, 1<<62),
	}
}

func (c acts) publish(r *http.Request, in *reader, op ops.Operation) (outcome, error) {
	m := in.manual()
	if err := in.err(); err != nil {
		return outcome{}, err
	}
	if _, err := c.ops.CheckManual(r.Context(), m); err != nil {
		return outcome{}, err
	}
	p, err := c.ops.Publish(r.Context(), op, m)
	if err != nil {
		return outcome{}, err
	}
	out := outcome{Result: p, go2: "event?id=" + url.QueryEscape(p.EventID)}
	if p.Created {
		out.Changed = 1
	}
	return out, nil
}

// publishCheck shows what publishing would save.
func (c *Console) publishCheck(w http.ResponseWriter, r *http.Request, in *reader, _ ops.Operation) error {
	m := in.manual()
	if err := in.err(); err != nil {
		return err
	}
	p, err := c.ops.CheckManual(r.Context(), m)
	if err != nil && (isAPI(r) || !errors.Is(err, ops.ErrInvalid)) {
		return err
	}
	if isAPI(r) {
		answerJSON(w, http.StatusOK, "application/json", p)
		return nil
	}
	v := manualView{Types: c.ops.PublishableTypes(), Manual: m, Proposed: &p}
	if err != nil {
		v.Proposed, v.Problem = nil, err.Error()
	}
	shown := c.viewOf(r, "publish", v)
	shown.Self = ""
	c.render(w, r, http.StatusOK, shown)
	return nil
}

// payload reveals a payload. It asks for no reason: looking is the reason, and the audit log has it.
func (c *Console) payload(w http.ResponseWriter, r *http.Request, in *reader, op ops.Operation) error {
	if op.Reason == "" {
		op.Reason = "looked at in the console"
	}
	p, err := c.ops.Payload(r.Context(), op, in.Get("id"))
	if err != nil {
		return err
	}
	if isAPI(r) {
		answerJSON(w, http.StatusOK, "application/json", p)
		return nil
	}
	e, err := c.ops.Event(r.Context(), in.Get("id"))
	if err != nil {
		return err
	}
	v := c.viewOf(r, "event", eventView{e, &p})
	v.Self = ""
	c.render(w, r, http.StatusOK, v)
	return nil
}
