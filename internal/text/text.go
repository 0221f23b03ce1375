// Package text makes strings fit to be stored: a failure must never fail to be
// recorded because of what its message contains.
package text

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Clean makes s storable in any of the databases: valid UTF-8, no NUL, at most limit runes.
func Clean(s string, limit int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
	if utf8.RuneCountInString(s) <= limit {
		return s
	}
	return string([]rune(s)[:limit-1]) + "…"
}

// quoted are the places in which databases quote a value back that did not suit them. It may be
// somebody's name or card number: it goes neither into a log nor into a table.
var quoted = []*regexp.Regexp{ //nolint:gochecknoglobals // constants
	regexp.MustCompile(`(?s)(Duplicate entry ')(.*)(' for key)`),                                       // MySQL 1062
	regexp.MustCompile(`(?s)(Incorrect [a-z ]+ value: ')(.*)(' for (?:column|function))`),              // 1292, 1366
	regexp.MustCompile(`(?s)(Truncated incorrect [A-Za-z]+ value: ')(.*)(')`),                          // 1292
	regexp.MustCompile(`(?s)(invalid input (?:syntax|value) for [a-z ]+(?: \w+)?: ")(.*)(")`),          // PostgreSQL 22P02
	regexp.MustCompile(`(?s)(date/time field value out of range: ")(.*)(")`),                           // 22008
	regexp.MustCompile(`(?s)(value ")(.*)(" is out of range for type)`),                                // 22003
	regexp.MustCompile(`(?s)(cannot unmarshal number )([-+0-9.eE]+)( into Go (?:value|struct field))`), // encoding/json
}

// Error is the storable text of err, "" for nil. Values that a database quotes back are left out.
func Error(err error) string {
	if err == nil {
		return ""
	}
	said := err.Error()
	for _, q := range quoted {
		said = q.ReplaceAllString(said, "$1…$3")
	}
	if s := Clean(said, MaxError); s != "" {
		return s
	}
	return fmt.Sprintf("%T with an empty message", err)
}

var (
	dotted = regexp.MustCompile(`^[a-z][a-z0-9_]*([.-][a-z0-9_]+)*$`)
	named  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]*$`)
)

// EventType checks a durable event type such as "order.paid" (at most 128 bytes).
func EventType(field, s string) error {
	return match(field, s, 128, dotted, `lower-case words joined by "." or "-", such as "order.paid"`)
}

// ConsumerName checks a durable consumer name such as "WalletConsumer" (at most 128 bytes).
func ConsumerName(field, s string) error {
	return match(field, s, 128, named, `a letter, then letters, digits, "_", "." or "-", such as "WalletConsumer"`)
}

// AggregateType checks an aggregate type such as "ORDER" (at most 64 bytes).
func AggregateType(field, s string) error {
	return match(field, s, 64, named, `a letter, then letters, digits, "_", "." or "-", such as "ORDER"`)
}

// Key checks an id or key that business code chose: any printable text that every
// database stores and compares alike (no control characters, no space at either end).
func Key(field, s string, limit int) error {
	switch {
	case s == "":
		return fmt.Errorf("%s is empty", field)
	case len(s) > limit:
		return fmt.Errorf("%s %s has %d bytes, the limit is %d", field, Quote(s), len(s), limit)
	case !utf8.ValidString(s):
		return fmt.Errorf("%s %s is not valid UTF-8", field, Quote(s))
	case strings.TrimSpace(s) != s:
		return fmt.Errorf("%s %s begins or ends with white space", field, Quote(s))
	case strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f }):
		return fmt.Errorf("%s %s contains a control character", field, Quote(s))
	}
	return nil
}

// Quote shows s in an error message, escaped and cut.
func Quote(s string) string {
	const shown = 60
	return fmt.Sprintf("%q", Clean(s[:min(len(s), (shown+1)*utf8.UTFMax)], shown)) // the rest may be megabytes
}

func match(field, s string, limit int, re *regexp.Regexp, want string) error {
	switch {
	case s == "":
		return fmt.Errorf("%s is empty: it must be %s", field, want)
	case len(s) > limit:
		return fmt.Errorf("%s %s has %d bytes, the limit is %d", field, Quote(s), len(s), limit)
	case !re.MatchString(s):
		return fmt.Errorf("%s %s is not a valid name: it must be %s", field, Quote(s), want)
	}
	return nil
}
