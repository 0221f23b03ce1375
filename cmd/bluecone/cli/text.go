package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// clean makes text that somebody else has written safe for a terminal, and one line: control
// characters, and those that turn the direction of writing, are shown as escapes.
func clean(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, dangerous) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			b.WriteByte(' ')
		case dangerous(r):
			b.WriteString(escape(r))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func escape(r rune) string {
	if r < 0x100 {
		return fmt.Sprintf(`\x%02x`, r)
	}
	return fmt.Sprintf(`\u%04x`, r)
}

// dangerous characters move the cursor, change the terminal, or hide what is written.
func dangerous(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == 0x2028 || r == 0x2029
}

// closeTo is a question for the name that was probably meant, or nothing.
func closeTo(name string, known []string, before string) string {
	best, least := "", 3
	for _, k := range known {
		d := distance(strings.ToLower(name), strings.ToLower(k))
		if len(name) > 2 && strings.HasPrefix(strings.ToLower(k), strings.ToLower(name)) {
			d = 1
		}
		if d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(": did you mean %s%s?", before, clean(best))
}

// distance is the number of letters to change, add or leave out between a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

const minute = "2006-01-02 15:04:05"

// stamp is a time for people, UTC.
func stamp(t time.Time) string {
	if t.IsZero() {
		return none
	}
	return t.UTC().Format(minute)
}

// span is a duration for people, in its two largest units.
func span(d time.Duration) string {
	switch {
	case d <= 0:
		return none
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		d = d.Round(time.Second)
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 48*time.Hour:
		d = d.Round(time.Minute)
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// plural is "1 event" or "2 events".
func plural(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if root, ok := strings.CutSuffix(what, "y"); ok {
		return fmt.Sprintf("%d %sies", n, root)
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// unique sorts words and leaves out repetitions.
func unique(words []string) []string {
	slices.Sort(words)
	return slices.Compact(words)
}
