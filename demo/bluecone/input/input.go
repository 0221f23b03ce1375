// Package input says what the demo takes for an id, a key or a name.
package input

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text refuses what a database would not store, or not tell apart from another text: nothing, more than limit bytes,
// what is not UTF-8, control characters, and white space at either end.
func Text(field, s string, limit int) error {
	shown := fmt.Sprintf("%.60q", s)
	switch {
	case s == "":
		return fmt.Errorf("%s is empty", field)
	case len(s) > limit:
		return fmt.Errorf("%s %s has %d bytes, the limit is %d", field, shown, len(s), limit)
	case !utf8.ValidString(s):
		return fmt.Errorf("%s %s is not valid UTF-8", field, shown)
	case strings.TrimSpace(s) != s:
		return fmt.Errorf("%s %s begins or ends with white space", field, shown)
	case strings.ContainsFunc(s, func(r rune) bool { return r < unicode.MaxASCII && unicode.IsControl(r) || r == unicode.MaxASCII }):
		return fmt.Errorf("%s %s contains a control character", field, shown)
	}
	return nil
}

var word = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// IsWord reports whether s is a plain word of at most 64 characters, which can stand anywhere.
func IsWord(s string) bool { return word.MatchString(s) }
