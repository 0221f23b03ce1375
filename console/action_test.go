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
