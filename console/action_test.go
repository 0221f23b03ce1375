package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/kind"
	"github.com/bluecone-go/bluecone/ops"
)

// A form that is sent twice acts once, and the second answer is the first.
func TestADoubleClickActsOnce(t *testing.T) {
	t.Parallel()
	for route, form := range everyMutation() {
		if strings.Contains(route, "check") || route == "payload" {
			continue // these change nothing
		}
		f := &fake{text: "x", count: 3}
		c := consoleOf(f, everything())
		form.Set("op", "op-"+route)
		first, second := post(c, "/"+route, form), post(c, "/"+route, form)
		require.Equal(t, http.StatusSeeOther, first.Code, route)
		require.Equal(t, first.Header().Get("Location"), second.Header().Get("Location"))
		n := 0
		for _, call := range f.done() {
			if strings.Contains(call, " anna ") {
				n++
			}
		}
		require.Equal(t, 1, n, "%s: %v", route, f.done())
	}
}

// An operation that failed may be tried again under its id.
func TestAFailedOperationMayBeRepeated(t *testing.T) {
	t.Parallel()
	f := &fake{text: "x", fails: fmt.Errorf("no: %w", ops.ErrNotFound)}
	c := consoleOf(f, everything())
	form := url.Values{"id": {"e1"}, "reason": {"r"}, "op": {"1"}}
	require.Equal(t, http.StatusConflict, post(c, "/retry", form).Code)
	f.fails = nil
	require.Equal(t, http.StatusSeeOther, post(c, "/retry", form).Code)
}

// The id of an operation belongs to what it does: nobody gets an answer to something else.
func TestAnOperationIDIsBoundToItsContent(t *testing.T) {
	t.Parallel()
	f := &fake{text: "x"}
	c := consoleOf(f, everything())
	form := func(id string) url.Values { return url.Values{"id": {id}, "reason": {"r"}, "op": {"1"}} }
	require.Equal(t, http.StatusSeeOther, post(c, "/retry", form("e1")).Code)
	require.Equal(t, http.StatusConflict, post(c, "/retry", form("e2")).Code)
	require.Equal(t, http.StatusConflict, postJSON(c, "/api/v1/resume", `{"consumer":"c","reason":"r","op":"1"}`).Code)
	same := form("e1")
	same.Set("lang", "zh")
	require.Equal(t, http.StatusSeeOther, post(c, "/retry", same).Code)
	require.Len(t, f.done(), 1)
}

// What a database or a driver says is for the log. Who looks gets a reference to it.
func TestErrorsOfTheDatabaseGoToTheLog(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{
		errors.New(canary + ": Error 1045 (28000): access denied for user 'shop'@'10.0.0.7'"),
		fmt.Errorf(canary+" %w", context.DeadlineExceeded),
	} {
		var log bytes.Buffer
		c := newConsole(&fake{text: "x", fails: cause}, Config{Authorize: Anyone(everything()), Logger: slog.New(slog.NewTextHandler(&log, nil))})
		for _, path := range []string{"/events", "/api/v1/events", "/", "/api/v1/overview", "/jobs"} {
			log.Reset()
			w := get(c, path)
			require.GreaterOrEqual(t, w.Code, http.StatusInternalServerError)
			require.NotContains(t, w.Body.String(), canary)
			reference := regexp.MustCompile(`reference ([0-9a-f]{8})`).FindStringSubmatch(w.Body.String())
			require.NotNil(t, reference, w.Body.String())
			require.Contains(t, log.String(), canary)
			require.Contains(t, log.String(), reference[1])
		}
	}
}

func TestOnceForgetsTheOldest(t *testing.T) {
	t.Parallel()
	o := newOnce()
	n := 0
	for i := range 2 * remembered {
		_, err := o.do(fmt.Sprint(i), "", func() (outcome, error) { n++; return outcome{}, nil })
		require.NoError(t, err)
	}
	require.Len(t, o.done, remembered)
	require.Equal(t, 2*remembered, n)
}

// What cannot be undone needs the number typed, and everything needs a reason.
func TestDestructiveActionsAreConfirmed(t *testing.T) {
	t.Parallel()
	for _, route := range []string{"skip", "discard", "replay"} {
		for _, confirm := range []string{"", "0", "2", "one"} {
			f := &fake{}
			require.Equal(t, http.StatusBadRequest, post(consoleOf(f, everything()), "/"+route, url.Values{
				"id": {"e1"}, "reason": {"r"}, "confirm": {confirm},
			}).Code)
			require.Empty(t, f.done())
		}
	}
	for route, form := range everyMutation() {
		if route == "payload" || route == "publish-check" {
			continue
		}
		f := &fake{count: 3}
		form.Set("reason", " ")
		require.Equal(t, http.StatusBadRequest, post(consoleOf(f, everything()), "/"+route, form).Code, route)
		require.Empty(t, f.done())
	}
	for _, c := range []struct {
		count            int64
		confirm, counted string
		code             int
	}{
		{3, "3", "3", http.StatusSeeOther},
		{2, "3", "3", http.StatusSeeOther},
		{4, "3", "3", http.StatusConflict},
		{3, "", "3", http.StatusConflict},
		{3, "4", "3", http.StatusConflict},
		{3, "x", "3", http.StatusBadRequest},
	} {
		f := &fake{text: "x", count: c.count}
		w := post(consoleOf(f, everything()), "/bulk", url.Values{
			"action": {"discard"}, "status": {"DEAD"}, "reason": {"r"}, "confirm": {c.confirm}, "counted": {c.counted}, "op": {"o"},
		})
		require.Equal(t, c.code, w.Code, "%+v", c)
		require.Equal(t, c.code == http.StatusSeeOther, strings.Contains(strings.Join(f.done(), ";"), "bulk anna"))
	}
}

// After an action comes the page it was started from, never another site.
func TestBackLeadsToOwnPagesOnly(t *testing.T) {
	t.Parallel()
	for to, want := range map[string]string{
		"events?status=DEAD": "events?status=DEAD", "": "./", "./": "./", "./?lang=zh": "./?lang=zh", "https://evil.example/": "./",
		"//evil.example/x": "./", "/\\evil.example": "./", "javascript:alert(1)": "./", "\\\\evil": "./", "../../x": "./",
		"event?id=a%2Fb": "event?id=a%2Fb",
	} {
		require.Equal(t, want, back(to), to)
	}
	c := consoleOf(&fake{}, everything())
	w := post(c, "/retry", url.Values{"id": {"a", "b"}, "reason": {"r"}, "back": {"events?status=DEAD"}, "lang": {"zh"}})
	require.Equal(t, "events?done=retry&lang=zh&n=2&status=DEAD", w.Header().Get("Location"))
}

func TestManySelectedEventsAreRetriedOneByOne(t *testing.T) {
	t.Parallel()
	f := &fake{}
	form := url.Values{"reason": {"r"}}
	for i := range maxSelected {
		form.Add("id", fmt.Sprint(i))
	}
	require.Equal(t, http.StatusSeeOther, post(consoleOf(f, everything()), "/retry", form).Code)
	require.Len(t, f.done(), maxSelected)
	form.Add("id", "one more")
	require.Equal(t, http.StatusBadRequest, post(consoleOf(f, everything()), "/retry", form).Code)
}

// What does not exist is 404, what exists in a state that does not allow the action 409; both say what is so.
func TestWhatDoesNotExistIsNotFound(t *testing.T) {
	t.Parallel()
	unfit := kind.Of(errors.New("nothing to retry: no delivery of the event is DEAD or FAILED"), ops.ErrNotFound)
	for code, err := range map[int]error{
		http.StatusNotFound: kind.Of(kind.Of(errors.New(`there is no event "nope"`), ops.ErrUnknown), ops.ErrNotFound),
		http.StatusConflict: unfit,
	} {
		c := consoleOf(&fake{text: "x", fails: err}, everything())
		w := postJSON(c, "/api/v1/retry", `{"id":"nope","reason":"r"}`)
		require.Equal(t, code, w.Code, w.Body)
		require.Contains(t, w.Body.String(), strings.ReplaceAll(err.Error(), `"`, `\"`))
		require.Equal(t, code, postJSON(c, "/api/v1/run-job", `{"code":"nope","reason":"r"}`).Code)
		require.Equal(t, code, post(c, "/retry", url.Values{"id": {"nope"}, "reason": {"r"}}).Code)
	}
}

// running is a deployment whose consumer c runs.
type running struct{ *fake }

func (running) Consumers(context.Context) ([]ops.Consumer, error) {
	return []ops.Consumer{{Name: "c", DisplayName: "Mail", State: ops.Running}, {Name: "d", State: ops.Paused}}, nil
}

func TestResumeOfAConsumerThatRunsChangesNothing(t *testing.T) {
	t.Parallel()
	c := newConsole(running{&fake{text: "x"}}, Config{Authorize: Anyone(everything()), Logger: quiet()})
	for consumer, changed := range map[string]string{"c": "0", "Mail": "0", "d": "1", "unknown": "1"} {
		w := postJSON(c, "/api/v1/resume", `{"consumer":"`+consumer+`","reason":"r"}`)
		require.Equal(t, http.StatusOK, w.Code)
		require.JSONEq(t, `{"changed":`+changed+`}`, w.Body.String(), consumer)
	}
	require.Equal(t, "./?done=resume&n=0", post(c, "/resume", url.Values{"consumer": {"c"}, "reason": {"r"}}).Header().Get("Location"))
	require.Contains(t, get(c, "/?done=resume&n=0").Body.String(), "It is not paused")
	require.Contains(t, get(c, "/?done=resume&n=1").Body.String(), "Resumed.")
}

func TestAPayloadIsATextThatHoldsJSON(t *testing.T) {
	t.Parallel()
	c := consoleOf(&fake{text: "x"}, everything())
	w := postJSON(c, "/api/v1/publish", `{"eventType":"order.paid","payload":{"orderId":"7"},"reason":"r"}`)
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.Contains(t, w.Body.String(), "payload must be a text that holds the event's JSON")
	w = postJSON(c, "/api/v1/retry", `{"id":{"a":"b"},"reason":"r"}`)
	require.Contains(t, w.Body.String(), "id must be a text, a number, true, false, or a list of them")
}

// A parameter that a page of the API does not have is a mistake: a filter with a typing error would select everything.
func TestTheAPIRefusesUnknownParameters(t *testing.T) {
	t.Parallel()
	c := consoleOf(&fake{text: "x"}, everything())
	w := get(c, "/api/v1/events?stauts=DEAD&lang=en")
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.Contains(t, w.Body.String(), `there is no parameter \"stauts\": the parameters are eventId, `)
	w = get(c, "/api/v1/jobs?x=1")
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.Contains(t, w.Body.String(), `there is no parameter \"x\": jobs takes none`)
	for _, path := range allPages() {
		name, query, _ := strings.Cut(path, "?")
		if name == "" {
			name = "overview"
		}
		if path != "forensics" && path != "bulk-new" { // these demand parameters
			require.NotEqual(t, http.StatusBadRequest, get(c, "/api/v1/"+name+"?lang=en&"+query).Code, path)
		}
	}
	require.Equal(t, http.StatusOK, get(c, "/events?stauts=DEAD").Code, "a page that a browser shows has further ones, such as done")
}

// A field that an action does not have is a mistake: with "consumers" for "consumer" a retry would be one of all consumers.
func TestTheAPIRefusesUnknownFields(t *testing.T) {
	t.Parallel()
	for body, says := range map[string]string{
		`{"id":"e1","consumers":"c","reason":"r"}`:                `there is no field \"consumers\": the fields are id, consumer, reason, op`,
		`{"id":"e1","Consumer":"c","reason":"r"}`:                 `there is no field \"Consumer\"`,
		`{"id":"e1","minutes":null,"reason":"r"}`:                 `there is no field \"minutes\"`,
		`{"id":"e1","reason":"r"}{"id":"e2"}`:                     `must end with the JSON object: something follows it`,
		`{"id":"e1","reason":"r"} x`:                              `must end with the JSON object: something follows it`,
		`{"id":"e1","reason":"r"}` + strings.Repeat(" ", maxBody): `is longer than`,
	} {
		f := &fake{text: "x"}
		w := postJSON(consoleOf(f, everything()), "/api/v1/retry", body)
		require.GreaterOrEqual(t, w.Code, http.StatusBadRequest, body[:26])
		require.Contains(t, w.Body.String(), says)
		require.Empty(t, f.done(), body[:26])
	}
	c := consoleOf(&fake{text: "x"}, everything())
	require.Equal(t, http.StatusBadRequest, postJSON(c, "/api/v1/retry", `{"id":"e1","id2":"e2","reason":"r"}`).Code)
	require.Equal(t, http.StatusBadRequest, postJSON(c, "/api/v1/bulk", `{"action":"retry","stauts":"DEAD","confirm":3,"reason":"r"}`).Code)
	require.Equal(t, http.StatusOK, postJSON(c, "/api/v1/retry", "{\"id\":\"e1\",\"reason\":\"r\",\"op\":\"1\"}\r\n \t").Code)
	form := url.Values{"id": {"e1"}, "reason": {"r"}, "back": {"./"}, "lang": {"zh"}, "of a browser's extension": {"x"}}
	require.Equal(t, http.StatusSeeOther, post(c, "/retry", form).Code, "what a page sends may have more")
}
