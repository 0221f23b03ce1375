package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// jsonCodec is the JSON of the contract. Connect's own codec makes strings of integers and loses the digits of long numbers; here
// every field of an answer is present, integers are numbers, a bytes field is the JSON that it holds, and what is not known is refused.
type jsonCodec struct{}

// Name is the one of connect's own codec for JSON, which this one replaces.
func (jsonCodec) Name() string { return "json" }

// utf8JSONCodec is the same for calls whose content type says the charset. Connect takes that for another codec.
type utf8JSONCodec struct{ jsonCodec }

// Name is the one of connect's own codec for such calls.
func (utf8JSONCodec) Name() string { return "json; charset=utf-8" }

// Marshal writes a message.
func (jsonCodec) Marshal(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("ledger: %T is no message", message)
	}
	return appendMessage(nil, m.ProtoReflect())
}

// MarshalStable writes a message as Marshal does, which has one form only.
func (c jsonCodec) MarshalStable(message any) ([]byte, error) { return c.Marshal(message) }

// IsBinary reports that this is text.
func (jsonCodec) IsBinary() bool { return false }

// Unmarshal reads a message.
func (jsonCodec) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("ledger: %T is no message", message)
	}
	proto.Reset(m)
	if len(bytes.TrimSpace(data)) == 0 {
		return nil // a call without a body
	}
	if !utf8.Valid(data) { // what is not would become other text
		return errors.New("the request is not valid UTF-8")
	}
	return readMessage(data, m.ProtoReflect(), "")
}

func appendMessage(b []byte, m protoreflect.Message) ([]byte, error) {
	if !m.IsValid() {
		return append(b, "null"...), nil
	}
	switch known := m.Interface().(type) {
	case *timestamppb.Timestamp:
		return strconv.AppendQuote(b, known.AsTime().UTC().Format(time.RFC3339Nano)), nil
	case *durationpb.Duration:
		return strconv.AppendQuote(b, formatDuration(known.AsDuration())), nil
	}
	b = append(b, '{')
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		if i > 0 {
			b = append(b, ',')
		}
		b = append(strconv.AppendQuote(b, f.JSONName()), ':')
		var err error
		if b, err = appendField(b, f, m.Get(f)); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

func appendField(b []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) (_ []byte, err error) {
	switch {
	case f.IsMap():
		return appendMap(b, v.Map())
	case f.IsList():
		b = append(b, '[')
		for i := range v.List().Len() {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendValue(b, f, v.List().Get(i)); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	}
	return appendValue(b, f, v)
}

// appendMap writes a map of texts, sorted by its keys.
func appendMap(b []byte, m protoreflect.Map) ([]byte, error) {
	all := make(map[string]string, m.Len())
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		all[k.String()] = v.String()
		return true
	})
	text, err := json.Marshal(all)
	return append(b, text...), err
}

func appendValue(b []byte, f protoreflect.FieldDescriptor, v protoreflect.Value) ([]byte, error) {
	switch f.Kind() { //nolint:exhaustive // what the contract has
	case protoreflect.MessageKind:
		return appendMessage(b, v.Message())
	case protoreflect.BytesKind:
		if len(v.Bytes()) == 0 {
			return append(b, "null"...), nil
		}
		return append(b, v.Bytes()...), nil
	case protoreflect.StringKind:
		text, err := json.Marshal(v.String())
		return append(b, text...), err
	case protoreflect.BoolKind:
		return strconv.AppendBool(b, v.Bool()), nil
	case protoreflect.Int32Kind, protoreflect.Int64Kind:
		return strconv.AppendInt(b, v.Int(), 10), nil
	}
	return nil, fmt.Errorf("ledger: a field of kind %s has no JSON", f.Kind())
}

// durations are written so, and read.
var durations = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?s$`)

func formatDuration(d time.Duration) string {
	text := strconv.FormatFloat(max(d, 0).Seconds(), 'f', 9, 64)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".") + "s"
}

// maxSeconds keeps a duration far from the end of its range.
const maxSeconds = 1e9

func readDuration(text string) (time.Duration, error) {
	if !durations.MatchString(text) {
		return 0, fmt.Errorf("%.40q is no duration: write seconds, such as \"30s\" or \"0.5s\"", text)
	}
	seconds, err := strconv.ParseFloat(strings.TrimSuffix(text, "s"), 64)
	if err != nil || seconds > maxSeconds {
		return 0, fmt.Errorf("%.40q is too long for a duration", text)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// readMessage reads an object. The path says where it stands, for people.
func readMessage(data []byte, m protoreflect.Message, path string) error {
	fields := m.Descriptor().Fields()
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("%s is not a JSON object", named(path))
	}
	seen := make(map[string]bool)
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return notJSON(path, err)
		}
		name, _ := t.(string)
		f := fields.ByJSONName(name)
		if f == nil {
			return fmt.Errorf("unknown field %.80q; the fields here are %s", join(path, name), names(fields))
		}
		if seen[name] {
			return fmt.Errorf("field %s stands there twice", join(path, name))
		}
		seen[name] = true
		if err := readField(dec, m, f, join(path, name)); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return notJSON(path, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("something follows %s: send one JSON object", named(path))
	}
	return nil
}

func readField(dec *json.Decoder, m protoreflect.Message, f protoreflect.FieldDescriptor, path string) error {
	switch {
	case f.IsMap():
		return readMap(dec, m, f, path)
	case f.IsList():
		return readList(dec, m, f, path)
	}
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		return notJSON(path, err)
	}
	if string(raw) == "null" {
		return nil
	}
	v, err := readValue(raw, f, m.NewField(f), path)
	if err != nil {
		return err
	}
	m.Set(f, v)
	return nil
}

// readValue reads one value of a field into v, which is a new one of its kind.
func readValue(raw []byte, f protoreflect.FieldDescriptor, v protoreflect.Value, path string) (protoreflect.Value, error) {
	switch f.Kind() { //nolint:exhaustive // what the contract has
	case protoreflect.MessageKind:
		return v, readEmbedded(raw, v.Message(), path)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(slices.Clone(raw)), nil
	case protoreflect.StringKind:
		var text string
		if err := json.Unmarshal(raw, &text); err != nil {
			return v, fmt.Errorf("field %s must be a text", path)
		}
		return protoreflect.ValueOfString(text), nil
	case protoreflect.Int32Kind:
		n, err := strconv.ParseInt(string(raw), 10, 32)
		if err != nil {
			return v, fmt.Errorf("field %s must be a whole number", path)
		}
		return protoreflect.ValueOfInt32(int32(n)), nil
	case protoreflect.Int64Kind:
		n, err := strconv.ParseInt(string(raw), 10, 64)
		if err != nil {
			return v, fmt.Errorf("field %s must be a whole number", path)
		}
		return protoreflect.ValueOfInt64(n), nil
	}
	return v, fmt.Errorf("field %s has a kind without JSON", path)
}

// readEmbedded reads a message in a message: an object, or the text of a duration or a time.
func readEmbedded(raw []byte, m protoreflect.Message, path string) error {
	var text string
	switch known := m.Interface().(type) {
	case *durationpb.Duration:
		if err := json.Unmarshal(raw, &text); err != nil {
			return fmt.Errorf("field %s must be a text such as \"30s\"", path)
		}
		d, err := readDuration(text)
		if err != nil {
			return fmt.Errorf("field %s: %w", path, err)
		}
		proto.Merge(known, durationpb.New(d))
		return nil
	case *timestamppb.Timestamp:
		if err := json.Unmarshal(raw, &text); err != nil {
			return fmt.Errorf("field %s must be a text such as \"2026-01-02T03:04:05Z\"", path)
		}
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return fmt.Errorf("field %s: %.40q is no time of RFC 3339", path, text)
		}
		proto.Merge(known, timestamppb.New(at))
		return nil
	}
	return readMessage(raw, m, path)
}

func notJSON(path string, err error) error {
	return fmt.Errorf("%s is not valid JSON: %s", named(path), err.Error()) // not wrapped: connect takes the end of a file for its own
}

func named(path string) string {
	if path == "" {
		return "the request"
	}
	return "field " + path
}

func join(path, name string) string { return strings.TrimPrefix(path+"."+name, ".") }

func names(fields protoreflect.FieldDescriptors) string {
	all := make([]string, fields.Len())
	for i := range all {
		all[i] = fields.Get(i).JSONName()
	}
	return strings.Join(all, ", ")
}
