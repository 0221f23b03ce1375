package text_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/bluecone-go/bluecone/internal/hostile"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Payloads are looked at byte by byte: what that says of depth and of replaced bytes is what the
// decoder says.
func FuzzInspect(f *testing.F) {
	for _, v := range hostile.Values() {
		f.Add([]byte(v.Text))
		if doc, err := json.Marshal(map[string]any{v.Text: []string{v.Text}}); err == nil {
			f.Add(doc)
		}
	}
	f.Add([]byte(hostile.Deep(32)))
	f.Add([]byte(strings.Repeat("2", 400))) // a number that no float holds
	f.Fuzz(func(t *testing.T, in []byte) {
		if !json.Valid(in) {
			return
		}
		doc, err := json.Marshal(json.RawMessage(in)) // as the encoder writes it
		if err != nil {
			return
		}
		deepest, level := 0, 0
		dec := json.NewDecoder(bytes.NewReader(doc))
		dec.UseNumber()
		for {
			token, err := dec.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			switch token {
			case json.Delim('['), json.Delim('{'):
				level++
				deepest = max(deepest, level)
			case json.Delim(']'), json.Delim('}'):
				level--
			}
		}
		if depth, _ := text.Inspect(doc); depth != deepest {
			t.Errorf("%s is %d deep, not %d", doc, deepest, depth)
		}
	})
}

// A string that encodes to something else than itself is noticed.
func FuzzInspectStrings(f *testing.F) {
	for _, v := range hostile.Values() {
		f.Add(v.Text)
	}
	f.Fuzz(func(t *testing.T, s string) {
		doc, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back string
		if err := json.Unmarshal(doc, &back); err != nil {
			t.Fatal(err)
		}
		if _, replaced := text.Inspect(doc); replaced != (back != s) {
			t.Errorf("%q: replaced is %v, and it comes back as %q", s, replaced, back)
		}
		if back != s && !strings.ContainsRune(back, '\ufffd') {
			t.Errorf("%q comes back as %q", s, back)
		}
	})
}
