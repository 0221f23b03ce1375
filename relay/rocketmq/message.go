package rocketmq

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/bluecone-go/bluecone/relay"
)

const (
	prefix      = "CE_"
	contentType = "CE_contenttype"
	// mostGroup is how many bytes a message group may have.
	mostGroup = 64
	// emptyBody stands for a payload without a byte.
	emptyBody = "\x00"
)

// message is one in the CloudEvents binding of RocketMQ.
func message(topic string, m relay.Message) *v2.Message {
	properties := map[string]string{contentType: m.ContentType}
	maps.Copy(properties, m.Headers)
	for name, v := range m.Attributes {
		properties[prefix+name] = v
	}
	body := m.Body
	if len(body) == 0 {
		body = []byte(emptyBody)
	}
	group := messageGroup(m)
	return &v2.Message{
		Topic: resource(topic), UserProperties: properties, Body: body,
		SystemProperties: &v2.SystemProperties{
			MessageId: m.ID, MessageGroup: &group, MessageType: v2.MessageType_FIFO, BodyEncoding: v2.Encoding_IDENTITY,
			BornTimestamp: timestamppb.Now(), BornHost: "bluecone",
		},
	}
}

// messageGroup is the key of a message, or its hash where RocketMQ does not take it.
func messageGroup(m relay.Message) string {
	key := m.Key()
	if len(key) > mostGroup || strings.ContainsFunc(key, unicode.IsControl) {
		hash := sha256.Sum256([]byte(key))
		return hex.EncodeToString(hash[:])
	}
	return key
}

// received is a message as an inbox takes it.
func received(topic, broker string, m *v2.Message) relay.Received {
	system := m.GetSystemProperties()
	r := relay.Received{
		Topic: topic, Partition: fmt.Sprintf("%s/%s/%d", topic, broker, system.GetQueueId()),
		Offset: strconv.FormatInt(system.GetQueueOffset(), 10), Body: m.GetBody(),
	}
	if at := system.GetBornTimestamp(); at != nil {
		r.Time = at.AsTime()
	}
	if string(r.Body) == emptyBody {
		r.Body = nil
	}
	for name, v := range m.GetUserProperties() {
		if strings.EqualFold(name, contentType) {
			r.ContentType = v
		} else {
			r.Add(prefix, name, v)
		}
	}
	if group := system.GetMessageGroup(); r.Attributes["partitionkey"] == "" && group != "" { // of a sender who does not know CloudEvents
		r.Add(prefix, prefix+"partitionkey", group)
	}
	return r
}

// isAboutMessage reports whether an error will be the same whenever the message is sent.
func isAboutMessage(err error) bool {
	answer, ok := errors.AsType[*answerError](err)
	if !ok {
		return false
	}
	if answer.code == v2.Code_INTERNAL_SERVER_ERROR {
		return strings.Contains(answer.message, "the message is illegal") // the proxy has no code for the limits of a broker
	}
	return slices.Contains([]v2.Code{
		v2.Code_MESSAGE_BODY_TOO_LARGE, v2.Code_MESSAGE_PROPERTIES_TOO_LARGE, v2.Code_ILLEGAL_MESSAGE_PROPERTY_KEY, v2.Code_ILLEGAL_MESSAGE_ID,
		v2.Code_ILLEGAL_MESSAGE_GROUP, v2.Code_MESSAGE_CORRUPTED, v2.Code_MESSAGE_BODY_EMPTY,
	}, answer.code)
}

// isPassing reports whether an answer says that RocketMQ cannot now.
func isPassing(code v2.Code) bool {
	return slices.Contains([]v2.Code{
		v2.Code_TOO_MANY_REQUESTS, v2.Code_REQUEST_TIMEOUT, v2.Code_PROXY_TIMEOUT, v2.Code_MASTER_PERSISTENCE_TIMEOUT,
		v2.Code_SLAVE_PERSISTENCE_TIMEOUT, v2.Code_HA_NOT_AVAILABLE, v2.Code_INTERNAL_SERVER_ERROR, v2.Code_INTERNAL_ERROR,
	}, code)
}
