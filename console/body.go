package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// sent refuses a body of any other type than the one that is read: a form with files above all.
func sent(r *http.Request, contentType string) error {
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != contentType {
		return &refusal{http.StatusUnsupportedMediaType, "error.invalid", errors.New("send Content-Type: " + contentType)}
	}
	return nil
}

// ofEveryAction are the fields that each action of the API takes.
func ofEveryAction() []string { return []string{"reason", "op"} }

// decode reads an object of texts, numbers, truth values and lists of texts, the fields of a form.
func (a action) decode(body io.Reader) (url.Values, error) {
	dec := json.NewDecoder(body)
	dec.UseNumber()
	var fields map[string]any
	if err := dec.Decode(&fields); err != nil {
		return nil, unread("the body, which must be a JSON object,", err)
	}
	if err := ended(dec); err != nil {
		return nil, err
	}
	values := url.Values{}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		v := fields[name]
		if takes := slices.Concat(a.takes, ofEveryAction()); !slices.Contains(takes, name) {
			return nil, invalid(fmt.Errorf("there is no field %q: the fields are %s", name, strings.Join(takes, ", ")))
		}
		list, ok := v.([]any)
		if !ok {
			list = []any{v}
		}
		for _, v := range list {
			switch v := v.(type) {
			case string, json.Number, bool:
				values.Add(name, fmt.Sprint(v))
			case nil:
			default:
				if name == "payload" {
					return nil, invalid(errors.New(`payload must be a text that holds the event's JSON, such as "{\"orderId\":\"7\"}"`))
				}
				return nil, invalid(fmt.Errorf("%s must be a text, a number, true, false, or a list of them", name))
			}
		}
	}
	return values, nil
}

// ended refuses what follows the object: a second one would be lost.
func ended(dec *json.Decoder) error {
	_, err := dec.Token()
	syntax := (*json.SyntaxError)(nil)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err == nil || errors.As(err, &syntax):
		return invalid(errors.New("the body must end with the JSON object: something follows it"))
	default:
		return unread("the body", err)
	}
}
