package main

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/order"
	"github.com/bluecone-go/bluecone/demo/broker"
	"github.com/bluecone-go/bluecone/demo/cli"
	"github.com/bluecone-go/bluecone/relay"
)

// source says in every event that leaves the monolith who has sent it.
const source = "/bluecone/bluecone"

// eventRelay sends events to a broker, if there is one.
type eventRelay struct {
	types     []string
	publisher broker.Publisher // nil without a broker
}

// newRelay reads --relay and --relay-types.
func newRelay(url, patterns string) (*eventRelay, error) {
	if url == "" && patterns == "" {
		return &eventRelay{}, nil
	}
	if url == "" {
		return nil, fmt.Errorf("%w: --relay-types needs --relay, which names the broker", cli.ErrUsage)
	}
	types, err := chooseTypes(patterns)
	if err != nil {
		return nil, err
	}
	p, err := broker.NewPublisher(url)
	if err != nil {
		return nil, fmt.Errorf("--relay: %w", err)
	}
	return &eventRelay{types, p}, nil
}

// chooseTypes reads names and patterns such as order.* with commas between them. Nothing means all.
func chooseTypes(patterns string) ([]string, error) {
	if patterns == "" {
		return order.Types(), nil
	}
	var types []string
	for pattern := range strings.SplitSeq(patterns, ",") {
		matches := func(name string) bool { ok, _ := path.Match(strings.TrimSpace(pattern), name); return ok }
		if !slices.ContainsFunc(order.Types(), matches) {
			return nil, fmt.Errorf("%w: --relay-types: %q is no event of the monolith: there are %s, and order.* means all", cli.ErrUsage,
				pattern, strings.Join(order.Types(), ", "))
		}
		for _, name := range order.Types() {
			if matches(name) && !slices.Contains(types, name) {
				types = append(types, name)
			}
		}
	}
	return types, nil
}

// connect returns an error if the broker refuses us.
func (r *eventRelay) connect(ctx context.Context) error {
	if r.publisher == nil {
		return nil
	}
	return broker.Connect(ctx, r.publisher)
}

// register adds the relay's consumer.
func (r *eventRelay) register(b *bus.Bus) error {
	if r.publisher == nil {
		return nil
	}
	return relay.Register(b, relay.Config{Types: r.types, Source: source}, r.publisher)
}

func (r *eventRelay) close() error {
	if r.publisher == nil {
		return nil
	}
	return r.publisher.Close()
}
