package text

import (
	"regexp"
	"strings"
)

const digits = "0123456789"

// values are what differs between two messages that say the same. Each is looked for only in a message
// that has one of its characters: a page masks thousands of messages, most of which have few of them.
var values = []struct { //nolint:gochecknoglobals // constants
	has  string
	re   *regexp.Regexp
	with string
}{
	{`"`, regexp.MustCompile(`"(?:[^"\\]|\\.)*"`), `"…"`},
	{`'`, regexp.MustCompile(`'(?:[^'\\]|\\.)*'`), `'…'`},
	{"`", regexp.MustCompile("`[^`]*`"), "`…`"},
	{"-", regexp.MustCompile(`\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b`), "#"},
	{"x", regexp.MustCompile(`\b0x[0-9a-fA-F]+\b`), "#"},
	{digits, regexp.MustCompile(`\b[0-9a-fA-F]{10,}\b`), "#"},
	{digits, regexp.MustCompile(`[-+]?\d+(?:[.,:]\d+)*`), "#"},
}

// Mask leaves of a message what messages about the same mistake have in common: quoted text, ids
// and numbers are replaced. Only the beginning counts: what follows is often a stack or a dump.
func Mask(s string) string {
	const most = 500
	s, _, _ = strings.Cut(s, "\n")
	s = Clean(s, most)
	for _, v := range values {
		if strings.ContainsAny(s, v.has) {
			s = v.re.ReplaceAllString(s, v.with)
		}
	}
	return strings.Join(strings.Fields(s), " ")
}
