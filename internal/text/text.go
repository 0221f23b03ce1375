// Package text makes strings fit to be stored: a failure must never fail to be
// recorded because of what its message contains.
package text

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// MaxError is the longest error text that is stored, in runes.
const MaxError = 2000

// Clean makes s storable in any of the databases: valid UTF-8, no NUL, at most limit runes.
func Clean(s string, limit int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
	if utf8.RuneCountInString(s) <= limit {
		return s
	}
	return string([]rune(s)[:limit-1]) + "…"
}

// Error is the storable text of err, "" for nil.
func Error(err error) string {
	if err == nil {
		return ""
	}
	if s := Clean(err.Error(), MaxError); s != "" {
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
func Quote(s string) string { return fmt.Sprintf("%q", Clean(s, 60)) }

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
