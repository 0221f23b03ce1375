package ops

import (
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/bluecone-go/bluecone/internal/personal"
)

// The fields of a message that nobody could read which hold its body, as text or as other bytes.
const (
	messageBody  = "body"
	messageBytes = "bodyBase64"
)

// message hides what is personal in a message that an inbox could not read. Nobody knows of which type it is: so what is personal in any
// event is hidden by its name, in the headers and, if it is JSON, in the body. The payload of a structured CloudEvent that is not
// JSON is hidden as a whole.
func (r *redactor) message(doc string) (string, bool) {
	of := personal.All()
	secret := func(path, name string) bool {
		return of.Names[name] || name == personal.Fold("data_base64") ||
			r.says(path, name) || r.says(strings.TrimPrefix(path, personal.Fold("data.")), name)
	}
	doc, hidden := r.hide(doc, true, secret)
	var fields map[string]any
	if err := json.Unmarshal([]byte(doc), &fields); err != nil {
		return doc, hidden
	}
	body, isText := fields[messageBody].(string)
	if encoded, ok := fields[messageBytes].(string); ok && !isText {
		plain, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return doc, hidden
		}
		body = string(plain)
	}
	if !json.Valid([]byte(body)) {
		return doc, hidden
	}
	shown, inBody := r.hide(body, true, secret)
	if !inBody {
		return doc, hidden
	}
	delete(fields, messageBytes)
	fields[messageBody] = strings.ToValidUTF8(shown, "\uFFFD")
	whole, err := json.Marshal(fields)
	if err != nil {
		return hiddenText, true
	}
	return string(whole), true
}
