// Package hostile is what users, other programs and bad days put into strings. The tests of every entry
// take it from here.
//
// # Contract
//
// An entry either refuses a value, with an error that names the field and the problem, and stores
// nothing; or the value is stored and delivered unchanged, byte for byte, on every database, and stays
// distinct from all others of the list.
package hostile

import "strings"

// Value is one of them.
type Value struct {
	Name string // what is bad about it
	Text string
}

// Values are all of them but the very long ones.
func Values() []Value { //nolint:funlen // a list
	return []Value{
		{"empty", ""},
		{"plain", "plain"},
		{"upper case", "PLAIN"},
		{"capital", "Plain"},
		{"trailing space", "plain "},
		{"leading space", " plain"},
		{"inner space", "pla in"},
		{"only spaces", "   "},
		{"trailing tab", "plain\t"},
		{"no-break space", "plain\u00a0"},
		{"ideographic space", "plain\u3000"},
		{"next line", "plain\u0085"},
		{"line break", "two\nlines"},
		{"carriage return", "head\r\nInjected: yes"},
		{"NUL", "nul\x00nul"},
		{"escape sequence", "\x1b[2J\x1b[31mred"},
		{"delete", "del\x7f"},
		{"bad UTF-8", "bad\xff\xfe"},
		{"cut UTF-8", "cut\xe4\xbd"},
		{"surrogate in UTF-8", "\xed\xa0\x80"},
		{"overlong UTF-8", "\xc0\xaf"},
		{"replacement character", "\ufffd"},
		{"byte order mark", "\ufeffplain"},
		{"emoji", "\U0001F600"},
		{"family of emoji", "\U0001F468\u200d\U0001F469\u200d\U0001F467"},
		{"right to left", "\u202egnp.exe"},
		{"Arabic", "\u0645\u0631\u062d\u0628\u0627"},
		{"Chinese", "\u8ba2\u5355\u5df2\u652f\u4ed8"},
		{"composed", "r\u00e9sum\u00e9"},
		{"decomposed", "re\u0301sume\u0301"},
		{"without accents", "resume"},
		{"sharp s", "stra\u00dfe"},
		{"double s", "strasse"},
		{"dotless i", "\u0131d"},
		{"Kelvin sign", "\u212a"},
		{"homoglyph", "\u0440l\u0430in"},
		{"zero width", "pl\u200bain"},
		{"64 bytes", strings.Repeat("a", 64)},
		{"65 bytes", strings.Repeat("a", 65)},
		{"128 bytes", strings.Repeat("a", 128)},
		{"129 bytes", strings.Repeat("a", 129)},
		{"128 bytes of three each", strings.Repeat("\u957f", 42) + "ab"},
		{"255 bytes", strings.Repeat("b", 255)},
		{"256 bytes", strings.Repeat("b", 256)},
		{"SQL", "'; DROP TABLE bc_outbox_event; --"},
		{"SQL comment", "a/*b*/--c"},
		{"quotes", `'"` + "`"},
		{"backslashes", `\' \\ \0 \n \u0000`},
		{"placeholders", "? ?0 $1 :a %s %d {}"},
		{"pattern", "100%_[a-z]*"},
		{"HTML", `<script>alert("x")</script><img src=x onerror=alert(1)>`},
		{"template", "{{.}} ${x} #{y} <%= z %>"},
		{"path", "../../etc/passwd"},
		{"JSON", `{"a":[1,null,"b"]}`},
		{"time zone", "TZ=0"},
		{"number", "1.23e2"},
		{"number with zeros", "0123"},
		{"null", "null"},
		{"NaN", "NaN"},
		{"formula", "=cmd|' /C calc'!A0"},
	}
}

// Huge is more than any entry takes: 17 MB.
func Huge() Value { return Value{"17 MB", strings.Repeat("h", 17<<20)} }

// Deep is JSON nested n deep.
func Deep(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
