package ledger

import (
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// mostEntries is how many entries each list and map of a request may have. A request is refused at the first one beyond, before what
// follows is read: an entry of few bytes, however small it was sent, takes hundreds of them in memory.
var mostEntries = map[protoreflect.FullName]int{ //nolint:gochecknoglobals // a constant table
	"bluecone.ledger.v1.PublishRequest.events":    maxEvents,
	"bluecone.ledger.v1.AckRequest.acks":          maxFetch,
	"bluecone.ledger.v1.FetchRequest.event_types": maxTypes,
	"bluecone.ledger.v1.Event.metadata":           maxMetadata,
}

func tooMany(path string, most int) error {
	return fmt.Errorf("%s has more than %d entries: send %d at most", path, most, most)
}

// readList reads a list of JSON, item by item.
func readList(dec *json.Decoder, m protoreflect.Message, f protoreflect.FieldDescriptor, path string) error {
	isThere, err := opens(dec, '[', path, "a list")
	if err != nil || !isThere {
		return err
	}
	list, most := m.Mutable(f).List(), mostEntries[f.FullName()]
	for dec.More() {
		if list.Len() == most {
			return tooMany(path, most)
		}
		item := fmt.Sprintf("%s[%d]", path, list.Len())
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return notJSON(item, err)
		}
		v, err := readValue(raw, f, list.NewElement(), item)
		if err != nil {
			return err
		}
		list.Append(v)
	}
	return closes(dec, path)
}

// readMap reads an object whose values are texts, entry by entry.
func readMap(dec *json.Decoder, m protoreflect.Message, f protoreflect.FieldDescriptor, path string) error {
	isThere, err := opens(dec, '{', path, "an object whose values are texts")
	if err != nil || !isThere {
		return err
	}
	entries, most := m.Mutable(f).Map(), mostEntries[f.FullName()]
	for n := 0; dec.More(); n++ {
		if n == most {
			return tooMany(path, most)
		}
		name, err := dec.Token()
		if err != nil {
			return notJSON(path, err)
		}
		key, _ := name.(string)
		value, err := dec.Token()
		if err != nil {
			return notJSON(join(path, key), err)
		}
		text, isText := value.(string)
		if !isText {
			return fmt.Errorf("field %s must be a text", join(path, key))
		}
		entries.Set(protoreflect.ValueOfString(key).MapKey(), protoreflect.ValueOfString(text))
	}
	return closes(dec, path)
}

// opens reads the beginning of a list or an object, or null: then there is none.
func opens(dec *json.Decoder, by json.Delim, path, what string) (isThere bool, err error) {
	switch t, err := dec.Token(); {
	case err != nil:
		return false, notJSON(path, err)
	case t == nil:
		return false, nil
	case t != by:
		return false, fmt.Errorf("field %s must be %s", path, what)
	}
	return true, nil
}

func closes(dec *json.Decoder, path string) error {
	if _, err := dec.Token(); err != nil {
		return notJSON(path, err)
	}
	return nil
}

// protoCodec is connect's own codec for protobuf, but that it refuses what is too much before it makes messages of it.
type protoCodec struct{}

// Name is the one of connect's own codec, which this one replaces.
func (protoCodec) Name() string { return "proto" }

// IsBinary reports that this is no text.
func (protoCodec) IsBinary() bool { return true }

// Marshal writes a message.
func (c protoCodec) Marshal(message any) ([]byte, error) { return c.MarshalAppend(nil, message) }

// MarshalAppend writes a message behind what there is.
func (protoCodec) MarshalAppend(dst []byte, message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("ledger: %T is no message", message)
	}
	return proto.MarshalOptions{}.MarshalAppend(dst, m)
}

// MarshalStable writes a message in one form only.
func (protoCodec) MarshalStable(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("ledger: %T is no message", message)
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}

// Unmarshal reads a message.
func (protoCodec) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("ledger: %T is no message", message)
	}
	if err := countEntries(data, m.ProtoReflect().Descriptor(), ""); err != nil {
		return err
	}
	return proto.Unmarshal(data, m)
}

// countEntries refuses a message that has more entries in a list or map than it may, and one with a message in it that stands there
// twice: such ones are merged, lists and all.
func countEntries(data []byte, of protoreflect.MessageDescriptor, path string) error {
	counts := make(map[protoreflect.FieldNumber]int)
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return fmt.Errorf("%s is no protobuf: %w", named(path), protowire.ParseError(n))
		}
		data = data[n:]
		if n = protowire.ConsumeFieldValue(number, kind, data); n < 0 {
			return fmt.Errorf("%s is no protobuf: %w", named(path), protowire.ParseError(n))
		}
		value := data[:n]
		data = data[n:]
		f := of.Fields().ByNumber(number)
		if f == nil || kind != protowire.BytesType || f.Cardinality() != protoreflect.Repeated && f.Message() == nil {
			continue
		}
		if err := countEntry(value, f, counts[number], join(path, f.JSONName())); err != nil {
			return err
		}
		counts[number]++
	}
	return nil
}

// countEntry looks at a value of a field that has had so many before.
func countEntry(value []byte, f protoreflect.FieldDescriptor, before int, path string) error {
	switch most := mostEntries[f.FullName()]; {
	case f.Cardinality() != protoreflect.Repeated && before > 0:
		return fmt.Errorf("field %s stands there twice", path)
	case f.Cardinality() == protoreflect.Repeated && before == most:
		return tooMany(path, most)
	case f.IsMap() || f.Message() == nil:
		return nil
	case f.IsList():
		path = fmt.Sprintf("%s[%d]", path, before)
	}
	inner, n := protowire.ConsumeBytes(value)
	if n < 0 {
		return errors.New(named(path) + " is no protobuf")
	}
	return countEntries(inner, f.Message(), path)
}
