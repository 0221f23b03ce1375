package rabbitmq

import (
	"fmt"
	"net/url"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/relay"
)

const (
	prefix      = "cloudEvents:"
	otherPrefix = "cloudEvents_" // of senders whose clients take no colon
	mostShort   = 255            // bytes of a short string of AMQP
	mostHeaders = 100 << 10      // bytes: they have to fit into one frame

	// RabbitMQ counts redeliveries in these headers, which are no part of the message.
	deliveryCount = "x-delivery-count"
	acquiredCount = "x-acquired-count"
)

// publishing is a message as it is sent.
func publishing(m relay.Message) (amqp.Publishing, error) {
	headers, size := amqp.Table{}, 0
	for name, v := range m.Headers {
		headers[name] = v
		size += len(name) + len(v)
	}
	for name, v := range m.Attributes {
		headers[prefix+name] = v
		size += len(prefix) + len(name) + len(v)
	}
	if size > mostHeaders {
		return amqp.Publishing{}, bus.Permanent(fmt.Errorf("rabbitmq: the headers have %d bytes, and at most %d are taken", size, mostHeaders))
	}
	for name := range headers {
		if len(name) > mostShort {
			return amqp.Publishing{}, bus.Permanent(fmt.Errorf("rabbitmq: the name of a header has %d bytes, and at most %d are taken",
				len(name), mostShort))
		}
	}
	return amqp.Publishing{
		Headers: headers, ContentType: cut(m.ContentType), DeliveryMode: amqp.Persistent, MessageId: cut(m.ID), Type: cut(m.Type), Body: m.Body,
	}, nil
}

// routingKey is the Destination of a message, or its type and aggregate.
func routingKey(m relay.Message) string {
	if m.Destination != "" {
		return cut(m.Destination)
	}
	return cut(m.Type + "." + strings.ReplaceAll(url.PathEscape(m.AggregateID), ".", "%2E"))
}

// cut shortens what nobody needs whole: the attributes have all of it.
func cut(text string) string { return text[:min(len(text), mostShort)] }

func (t target) received(d amqp.Delivery) relay.Received {
	r := relay.Received{Topic: t.queue, Partition: t.queue, ContentType: d.ContentType, Body: d.Body}
	for name, v := range d.Headers {
		if name == deliveryCount || name == acquiredCount {
			continue
		}
		text, ok := v.(string)
		if !ok {
			text = fmt.Sprint(v)
		}
		if strings.HasPrefix(name, otherPrefix) {
			name = prefix + name[len(otherPrefix):]
		}
		r.Add(prefix, name, text)
	}
	if r.Attributes["id"] == "" && d.MessageId != "" { // of a sender who does not know CloudEvents
		r.Add(prefix, prefix+"id", d.MessageId)
	}
	return r
}
