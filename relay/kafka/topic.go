package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// errMissing is a topic that is not there and may not be created.
var errMissing = errors.New("the topic is not there, and create=false: create it, such as by " +
	"kafka-topics.sh --bootstrap-server HOST:9092 --create --topic")

// byDefault has the cluster choose how many partitions and replicas a topic gets.
const byDefault = -1

// find looks once whether a broker answers and takes the credentials, and whether the topic is there, which it creates if it may.
func (t target) find(ctx context.Context, client *kgo.Client, topic string) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	if err := client.Ping(ctx); err != nil {
		return classify(err)
	}
	admin, created := kadm.NewClient(client), false
	for {
		details, err := admin.ListTopics(ctx, topic)
		if err != nil {
			return classify(err)
		}
		switch err := details[topic].Err; {
		case err == nil && len(details[topic].Partitions) > 0:
			return nil
		case errors.Is(err, kerr.UnknownTopicOrPartition) && !t.mayCreate:
			return classify(fmt.Errorf("%w %s", errMissing, topic))
		case errors.Is(err, kerr.UnknownTopicOrPartition) && !created:
			_, err = admin.CreateTopic(ctx, byDefault, byDefault, nil, topic)
			if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) { // the other end may have been faster
				return classify(fmt.Errorf("create the topic %s: %w", topic, err))
			}
			created = true
			continue
		case err != nil && !kerr.IsRetriable(err):
			return classify(err)
		}
		if pause(ctx, 50*time.Millisecond); ctx.Err() != nil {
			return classify(fmt.Errorf("the topic %s has no leader: %w", topic, ctx.Err()))
		}
	}
}

// settings are those of a topic by name.
func settings(ctx context.Context, client *kgo.Client, topic string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	answer, err := kadm.NewClient(client).DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return nil, classify(err)
	}
	of := make(map[string]string)
	_, err = answer.On(topic, func(r *kadm.ResourceConfig) error {
		for _, c := range r.Configs {
			of[c.Key] = c.MaybeValue()
		}
		return r.Err
	})
	return of, classify(err)
}

// examine says by which settings the topic may lose what was confirmed, one sentence each.
func (t target) examine(ctx context.Context, client *kgo.Client) ([]string, error) {
	of, err := settings(ctx, client, t.topic)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, bad := range []struct{ name, value, because string }{
		{"min.insync.replicas", "1", "a message is confirmed when one broker has it, and lost with that: set 2, with 3 replicas"},
		{"unclean.leader.election.enable", "true", "a broker that has missed messages may become the leader"},
		{"cleanup.policy", "compact", "only the last message of each aggregate is kept: set delete"},
		{"cleanup.policy", "compact,delete", "only the last message of each aggregate is kept: set delete"},
	} {
		if of[bad.name] == bad.value {
			found = append(found, fmt.Sprintf("%s is %s: %s", bad.name, bad.value, bad.because))
		}
	}
	if ms, err := strconv.ParseInt(of["retention.ms"], 10, 64); err == nil && ms >= 0 {
		found = append(found, fmt.Sprintf("retention.ms is %v: what no inbox has landed by then is deleted", time.Duration(ms)*time.Millisecond))
	}
	if bytes := of["retention.bytes"]; bytes != "" && bytes != "-1" {
		found = append(found, fmt.Sprintf("retention.bytes is %s: what is beyond is deleted, landed or not", bytes))
	}
	return found, nil
}
