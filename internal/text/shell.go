package text

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
)

// word is what every shell takes as it is.
var word = regexp.MustCompile(`^[A-Za-z0-9_./@][A-Za-z0-9_./@:%+,=-]*$`)

// Shell writes a value of anybody's so that a command with it can be pasted into a shell: it stays one word, and is no option.
func Shell(s string) string {
	switch {
	case word.MatchString(s):
		return s
	case strings.HasPrefix(s, "-"):
		return "'(a value that begins with a dash)'" // a command would take it for an option, quoted or not
	}
	return "'" + strings.ReplaceAll(Visible(s), "'", `'\''`) + "'"
}

// Visible writes the characters that steer a terminal, or hide what stands beside them, as escapes.
func Visible(s string) string {
	if !strings.ContainsFunc(s, steers) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if steers(r) {
			fmt.Fprintf(&b, "\\u%04x", r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

func steers(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029' || r == unicode.ReplacementChar
}
