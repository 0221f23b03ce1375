package ledger

import "strings"

// given refuses a text that is missing, or that has a byte which not every database stores. It is valid UTF-8: the codecs see to that.
func given(field, text string) error {
	switch {
	case text == "":
		return invalid("%s is missing", field)
	case strings.ContainsRune(text, 0):
		return invalid("%s has a NUL byte", field)
	}
	return nil
}
