package text

import "bytes"

// Inspect tells how deep arrays and objects are nested in valid JSON, and whether the encoder
// had to replace a byte that is not UTF-8 (which it writes as an escape; the character itself
// it writes as it is).
func Inspect(doc []byte) (deepest int, replaced bool) {
	level, inString := 0, false
	for i := 0; i < len(doc); i++ {
		switch c := doc[i]; {
		case inString && c == '\\':
			replaced = replaced || bytes.HasPrefix(doc[i:], []byte(`\ufffd`))
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			level++
			deepest = max(deepest, level)
		case c == '}' || c == ']':
			level--
		}
	}
	return deepest, replaced
}
