package schedule

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Spec is a parsed cron expression, always in UTC.
type Spec struct {
	expr string
	s    cron.Schedule
}

// Parse reads a cron expression of five fields (minute first) or six (second first).
// "?" stands for "any", as in Quartz. A time zone prefix and a date that never comes
// are errors.
func Parse(expr string) (spec Spec, err error) {
	defer func() {
		if v := recover(); v != nil { // the parser panics on some malformed input
			err = fmt.Errorf("cron expression %q cannot be parsed: %v", expr, v)
		}
	}()
	fields := strings.Fields(expr)
	if strings.Contains(expr, "TZ=") {
		return Spec{}, fmt.Errorf("cron expression %q names a time zone: schedules are always UTC", expr)
	}
	var parser cron.Parser
	switch {
	case len(fields) == 1 && strings.HasPrefix(expr, "@"):
		parser = cron.NewParser(cron.Descriptor)
	case len(fields) == 5:
		parser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)
	case len(fields) == 6:
		parser = cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)
	default:
		noun := "fields"
		if len(fields) == 1 {
			noun = "field"
		}
		return Spec{}, fmt.Errorf("cron expression %q has %d %s: it must have 5 (minute first) or 6 (second first)", expr, len(fields), noun)
	}
	s, err := parser.Parse(strings.Join(fields, " "))
	if err != nil {
		return Spec{}, fmt.Errorf("cron expression %q: %w", expr, err)
	}
	spec = Spec{expr: expr, s: s}
	if spec.Next(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return Spec{}, errors.New("cron expression \"" + expr + "\" names a date that never comes")
	}
	return spec, nil
}

// Next is the first due time after t, in UTC.
func (s Spec) Next(t time.Time) time.Time { return s.s.Next(t.UTC()) }

// String is the expression as it was written.
func (s Spec) String() string { return s.expr }
