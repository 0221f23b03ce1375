package ops

import (
	"context"
	"fmt"
	"time"

	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/store/view"
)

// Brokers are relays, inboxes and their message brokers.
type Brokers struct {
	Links      []BrokerLink `json:"links"`
	Partitions []Partition  `json:"partitions"`
}

// BrokerRole says what somebody does at a broker.
type BrokerRole string

// The roles.
const (
	RelayRole BrokerRole = store.RoleRelay // gives events to it
	InboxRole BrokerRole = store.RoleInbox // lands what it brings
)

// LinkState says what is known of the way to a broker.
type LinkState string

// The states of a link.
const (
	LinkConnected LinkState = store.BrokerConnected // the broker has answered the last time
	LinkAway      LinkState = store.BrokerAway      // it has not
	LinkRefused   LinkState = store.BrokerRefuses   // it has refused, and a person has to change something
	LinkUnknown   LinkState = store.BrokerUnknown   // nobody has asked it
	LinkGone      LinkState = "GONE"                // the instance has told nothing for a while: it has died, or has lost the database
)

// BrokerLink is what one instance of a relay or an inbox knows of its broker. Instances write it every few seconds. One that has ended
// as it should has none; that of one that has died stays for a day.
type BrokerLink struct {
	Role     BrokerRole `json:"role"`
	Name     string     `json:"name"` // the relay's consumer, or as inbox.Config.Source says
	Instance string     `json:"instance"`
	Broker   string     `json:"broker"` // where it is and what is used of it, without credentials; empty where the adapter does not tell
	State    LinkState  `json:"state"`
	// Window is how many messages of a relay may be unconfirmed in this instance, and Unconfirmed how many were.
	Window      int64 `json:"window"`
	Unconfirmed int64 `json:"unconfirmed"`
	// Lag is how many messages the broker has that an inbox has not acknowledged, or how many deliveries wait for a relay; either in the whole
	// deployment. It is -1 where nobody knows.
	Lag         int64     `json:"lag"`
	LastError   string    `json:"lastError,omitempty"`
	LastErrorAt time.Time `json:"lastErrorAt,omitzero"`
	Seen        time.Time `json:"seen"` // when the instance wrote this
}

// Partition is what one partition of a message broker has brought to an inbox (package relay/inbox), since there is a row of it. What
// nobody can read has landed as an event of the type inbox.undecodable, which is DEAD. What an operator has had landed again is
// counted in a row "again".
type Partition struct {
	Name        string    `json:"name"`      // as inbox.Config.Source says
	Partition   string    `json:"partition"` // a topic with its partition, a queue or a stream
	Landed      int64     `json:"landed"`    // messages that became events
	Duplicates  int64     `json:"duplicates"`
	Undecodable int64     `json:"undecodable"`
	Offset      string    `json:"offset,omitempty"` // of the last message, where the broker has offsets
	Owner       string    `json:"owner,omitempty"`  // the instance that has the partition now, where the broker does not see to that
	Seen        time.Time `json:"seen"`             // when an instance last asked for the partition, or landed something of it
}

// Brokers lists what relays and inboxes know of their brokers, and what these have brought, by inbox and partition.
func (o *Ops) Brokers(ctx context.Context) (Brokers, error) {
	if err := CallerOf(ctx).whole("the list of brokers"); err != nil {
		return Brokers{}, err
	}
	return share(ctx, o.access, "brokers", nil, func(ctx context.Context) (Brokers, error) {
		links, err := o.overviews.links(ctx)
		if err != nil {
			return Brokers{}, err
		}
		partitions, err := o.access.partitions(ctx)
		return Brokers{links, partitions}, err
	})
}

func (v *overviews) links(ctx context.Context) ([]BrokerLink, error) {
	rows, err := view.Brokers(ctx, v.access.sql, maxNames, listText)
	if err != nil {
		return nil, fmt.Errorf("ops: read brokers: %w", err)
	}
	out := []BrokerLink{}
	for _, r := range rows {
		link := BrokerLink{
			Role: BrokerRole(r.Role), Name: r.Name, Instance: r.Instance, Broker: r.Broker, State: LinkState(r.State), Window: r.Window,
			Unconfirmed: r.Unconfirmed, Lag: r.Behind, LastError: shown(r.Error, listText), LastErrorAt: r.ErrorAt, Seen: r.SeenAt,
		}
		if r.IsGone() {
			link.State, link.Unconfirmed = LinkGone, 0
		}
		out = append(out, link)
	}
	return out, v.relaysBehind(ctx, out)
}

// relaysBehind fills in what waits for relays: their deliveries.
func (v *overviews) relaysBehind(ctx context.Context, links []BrokerLink) error {
	waiting := make(map[string]int64)
	for _, l := range links {
		if l.Role != RelayRole || len(waiting) > 0 {
			continue
		}
		consumers, err := v.consumers(ctx)
		if err != nil {
			return err
		}
		for _, c := range consumers {
			waiting[c.Name] = c.Waiting.Count + c.Failed.Count
		}
	}
	for i, l := range links {
		if n, ok := waiting[l.Name]; ok && l.Role == RelayRole {
			links[i].Lag = n
		}
	}
	return nil
}

func (a *access) partitions(ctx context.Context) ([]Partition, error) {
	rows, err := view.Inboxes(ctx, a.sql, maxNames)
	if err != nil {
		return nil, fmt.Errorf("ops: read inboxes: %w", err)
	}
	out := []Partition{}
	for _, r := range rows {
		out = append(out, Partition{
			Name: r.Name, Partition: r.Partition, Landed: r.Landed, Duplicates: r.Duplicates, Undecodable: r.Undecodable, Offset: r.Offset,
			Owner: r.Owner, Seen: r.SeenAt,
		})
	}
	return out, nil
}
