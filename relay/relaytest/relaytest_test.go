package relaytest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/relay/relaytest"
)

func memory(f flaws) relaytest.Broker {
	return relaytest.Broker{
		Start:            func(t testing.TB, _ string) relaytest.Server { return startServer(t) },
		Publisher:        func(url string) (relaytest.Publisher, error) { return newAdapter(url, f) },
		Subscriber:       func(url string) (relaytest.Subscriber, error) { return newAdapter(url, f) },
		TooLarge:         mostBody,
		WrongCredentials: func(url string) string { return strings.Replace(url, "right", "wrong", 1) },
		Missing:          func(url string) string { return strings.Replace(url, "/log", "/none", 1) },
	}
}

func TestAGoodAdapterPasses(t *testing.T) { //nolint:paralleltest // it counts goroutines
	relaytest.Run(t, memory(flaws{}))
}

// broken are adapters with one flaw each, and the case that has to notice it.
func broken() map[string]struct {
	flaws
	by string
} {
	type b = struct {
		flaws
		by string
	}
	return map[string]b{
		"ignores the answer":     {flaws{ignoresAnswer: true}, "a_frozen_broker_loses_nothing"},
		"acknowledges first":     {flaws{acksFirst: true}, "what_could_not_be_landed_comes_again"},
		"passes over failures":   {flaws{skipsFailed: true}, "what_could_not_be_landed_comes_again"},
		"forgets headers":        {flaws{forgetsHeaders: true}, "every_part_of_a_message_arrives"},
		"never asks for room":    {flaws{neverAsks: true}, "fetching_pauses_while_there_is_no_room"},
		"leaks a goroutine":      {flaws{leaks: true}, "nothing_is_left_after_close"},
		"drops what is large":    {flaws{dropsLarge: true}, "too_large_is_permanent"},
		"gives up":               {flaws{givesUp: true}, "a_broker_that_is_away_is_waited_for"},
		"shuffles":               {flaws{shuffles: true}, "events_of_one_aggregate_keep_their_order"},
		"takes refusal for away": {flaws{wrongIsAway: true}, "wrong_credentials_are_refused"},
	}
}

const flaw = "BLUECONE_TEST_FLAW"

// TestBrokenAdapter is run by the test below in a process of its own, where it has to fail.
func TestBrokenAdapter(t *testing.T) { //nolint:paralleltest // it counts goroutines
	name := os.Getenv(flaw)
	if name == "" {
		t.Skip("it is run by TestTheSuiteNoticesWhatIsBroken")
	}
	relaytest.Run(t, memory(broken()[name].flaws))
}

func TestTheSuiteNoticesWhatIsBroken(t *testing.T) {
	t.Parallel()
	for name, b := range broken() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestBrokenAdapter$/^"+b.by+"$", "-test.v")
			cmd.Env = append(os.Environ(), flaw+"="+name, "BLUECONE_TEST_BROKERS_PATIENCE=5s")
			said, err := cmd.CombinedOutput()
			require.Error(t, err, "%s", said)
			require.Contains(t, string(said), "--- FAIL: TestBrokenAdapter/"+b.by, "%s", said)
		})
	}
}
