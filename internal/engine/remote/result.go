package remote

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/bluecone-go/bluecone/internal/text"
)

// CheckResult says why a database could not store the result, or would store what nobody can read back: nil if it can.
func (f Finish) CheckResult(deepest int) error {
	switch {
	case f.Result == "":
		return nil
	case !utf8.ValidString(f.Result):
		return errors.New("it is not valid UTF-8")
	case !json.Valid([]byte(f.Result)):
		return errors.New("it is not valid JSON")
	}
	if depth, _ := text.Inspect([]byte(f.Result)); depth > deepest {
		return fmt.Errorf("it is nested %d deep, the limit is %d", depth, deepest)
	}
	return nil
}
