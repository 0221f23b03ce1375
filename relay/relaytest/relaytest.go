// Package relaytest proves an adapter for a message broker: [Run] puts its publisher and its subscriber through everything that
// a relay and an inbox rely on, on a broker that is killed, frozen and cut off meanwhile. The tests of bluecone's own adapters are
// calls of Run; one for yours is written alike:
//
//	func TestAdapter(t *testing.T) {
//		relaytest.Run(t, relaytest.Broker{
//			Start:      startServer, // a private one
//			Publisher:  func(url string) (relaytest.Publisher, error) { return mine.NewPublisher(url, mine.Config{}) },
//			Subscriber: func(url string) (relaytest.Subscriber, error) { return mine.NewSubscriber(url, mine.Config{}) },
//		})
//	}
//
// Every case starts a broker of its own, or empties it, and reaches it through a proxy of the suite, which cuts connections. The
// short form takes less than a minute. With BLUECONE_TEST_BROKERS=whole in the environment the events are many and the broker
// is frozen for 30 s.
package relaytest

import (
	"os"
	"testing"
	"time"

	"github.com/bluecone-go/bluecone/relay"
)

// Broker is what the suite has to know of a broker and of its adapter.
type Broker struct {
	// Start starts a private broker that keeps what it has confirmed when it is killed, and has it ended and removed by
	// t.Cleanup. front is the address, host:port, at which clients reach it, by the suite's proxy: a broker that tells its clients where
	// it is (Kafka) has to name that one. It may skip the test if the broker cannot be had on this machine.
	Start func(t testing.TB, front string) Server
	// Publisher and Subscriber make the two ends from a URL, without connecting.
	Publisher  func(url string) (Publisher, error)
	Subscriber func(url string) (Subscriber, error)
	// TooLarge is the size in bytes of a body that the broker refuses. Default: 0, it takes any, and the case is left out.
	TooLarge int
	// WrongCredentials makes of a URL one with a password that the broker refuses. Default: nil, the case is left out.
	WrongCredentials func(url string) string
	// Missing makes of a URL one that names a topic, queue or stream that is not there and may not be created. Default: nil, the
	// case is left out.
	Missing func(url string) string
	// DropsRepeated says that the broker keeps a message with an ID that it has confirmed before only once. Default: false.
	DropsRepeated bool
	// Leave names cases that the broker cannot pass, with the reason, which the suite prints. Default: none.
	Leave map[string]string
}

// Server is one private broker.
type Server interface {
	// Addr is where it listens, host:port. It is the same after Restart.
	Addr() string
	// URL is how the adapter reaches it by way of another address, with the credentials and a topic, queue or stream of its own.
	URL(addr string) string
	// Kill ends the process at once (SIGKILL); Restart starts it again on the same data.
	Kill()
	Restart()
	// Freeze stops the process without ending it (SIGSTOP); Thaw lets it go on.
	Freeze()
	Thaw()
}

// Publisher is one end of an adapter.
type Publisher interface {
	relay.Publisher
	relay.Connection
}

// Subscriber is the other end.
type Subscriber interface {
	relay.Subscriber
	relay.Connection
}

// patience is how long the suite waits for what must come: BLUECONE_TEST_BROKERS_PATIENCE, or three minutes.
func patience() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("BLUECONE_TEST_BROKERS_PATIENCE")); err == nil {
		return d
	}
	return 3 * time.Minute
}

// size is how much the suite does.
type size struct {
	keys, perKey int           // entities, and messages of each
	freeze       time.Duration // how long a broker is frozen
	kills        int           // how often it is killed
}

func sizes() size {
	if os.Getenv("BLUECONE_TEST_BROKERS") == "whole" {
		return size{keys: 64, perKey: 200, freeze: 30 * time.Second, kills: 5}
	}
	return size{keys: 16, perKey: 12, freeze: 2 * time.Second, kills: 1}
}

// Run runs every case as a subtest.
func Run(t *testing.T, b Broker) {
	t.Helper()
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) {
			if why := b.Leave[c.name]; why != "" {
				t.Skip(why)
			}
			if c.needs != nil && !c.needs(b) {
				t.Skip("the broker has no such case: see relaytest.Broker")
			}
			c.run(newWorld(t, b))
		})
	}
}

// testCase is one of the suite.
type testCase struct {
	name  string
	needs func(b Broker) bool // nil for nothing
	run   func(w *world)
}

func cases() []testCase {
	return []testCase{
		{"every part of a message arrives", nil, partsArrive},
		{"events of one aggregate keep their order", nil, orderIsKept},
		{"a repeated message is a success", nil, repeatedIsSuccess},
		{"what could not be landed comes again", nil, refusedComesAgain},
		{"poison stops nothing", nil, poisonStopsNothing},
		{"too large is permanent", func(b Broker) bool { return b.TooLarge > 0 }, tooLargeIsPermanent},
		{"wrong credentials are refused", func(b Broker) bool { return b.WrongCredentials != nil }, wrongCredentials},
		{"a missing topic is refused", func(b Broker) bool { return b.Missing != nil }, missingTopic},
		{"a broker that is away is waited for", nil, awayIsWaitedFor},
		{"a killed broker loses nothing", nil, killedLosesNothing},
		{"a frozen broker loses nothing", nil, frozenLosesNothing},
		{"a cut between publish and confirm loses nothing", nil, cutBeforeConfirm},
		{"a cut between commit and acknowledgement loses nothing", nil, cutBeforeAck},
		{"fetching pauses while there is no room", nil, fetchingPauses},
		{"another instance takes over", nil, anotherTakesOver},
		{"nothing is left after close", nil, nothingIsLeft},
	}
}
