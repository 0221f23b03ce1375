package remote_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/engine/remote"
)

// A result is what every database stores as JSON, and gives back as it was.
func TestAResultIsJSONThatCanBeStored(t *testing.T) {
	t.Parallel()
	for result, want := range map[string]string{
		"":                                   "",
		`{"points":5}`:                       "",
		` "a text" `:                         "",
		`null`:                               "",
		`{"points":`:                         "it is not valid JSON",
		`done`:                               "it is not valid JSON",
		`{"a":1},"status":"SENT"`:            "it is not valid JSON",
		" ":                                  "it is not valid JSON",
		"\"\xff\"":                           "it is not valid UTF-8",
		"\"\x00\"":                           "it is not valid JSON",
		strings.Repeat("[", 3) + "1]]]":      "",
		strings.Repeat("[", 4) + "1]]]]":     "it is nested 4 deep, the limit is 3",
		`["` + strings.Repeat("[", 9) + `"]`: "",
	} {
		err := remote.Finish{Result: result}.CheckResult(3)
		if want == "" {
			require.NoError(t, err, "%q", result)
		} else {
			require.EqualError(t, err, want, "%q", result)
		}
	}
}
