package kafka

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/bluecone-go/bluecone/relay"
)

const (
	prefix       = "ce_"
	contentType  = "content-type"
	partitionKey = "partitionkey"
)

// record is a message in the CloudEvents binding of Kafka. A payload without a byte is not the nil of a removed key.
func record(topic string, m relay.Message) *kgo.Record {
	r := &kgo.Record{Topic: topic, Key: []byte(m.Key()), Value: m.Body}
	if r.Value == nil {
		r.Value = []byte{}
	}
	add := func(name, v string) { r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(v)}) }
	for name, v := range m.Headers {
		add(name, v)
	}
	for name, v := range m.Attributes {
		add(prefix+name, v)
	}
	add(contentType, m.ContentType)
	return r
}

func received(record *kgo.Record) relay.Received {
	r := relay.Received{
		Topic: record.Topic, Partition: fmt.Sprintf("%s/%d", record.Topic, record.Partition), Offset: strconv.FormatInt(record.Offset, 10),
		Time: record.Timestamp, Body: record.Value,
	}
	for _, h := range record.Headers {
		if strings.EqualFold(h.Key, contentType) {
			r.ContentType = string(h.Value)
		} else {
			r.Add(prefix, h.Key, string(h.Value))
		}
	}
	if key := record.Key; r.Attributes[partitionKey] == "" && len(key) > 0 && utf8.Valid(key) { // of a sender who does not know CloudEvents
		r.Add(prefix, prefix+partitionKey, string(key))
	}
	return r
}
