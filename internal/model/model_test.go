//go:build !race

// Whoever explores the model is alone with it: the race detector would only take six times as long.

package model

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const most = 2_000_000

var scenes = map[string]Bounds{
	"crash":    {Crashes: 1, Failures: 1},
	"freeze":   {Freezes: 1, Retentions: 1},
	"expiry":   {Expiries: 1, Failures: 1},
	"operator": {Failures: 1, Operations: 2},
	"deploy":   {Deploy: true, Failures: 1},
}

// With all rules on, nothing that can happen breaks a promise.
func TestEnginesRulesSuffice(t *testing.T) {
	t.Parallel()
	for name, bounds := range scenes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seen, err := Explore(All(), bounds, most)
			require.NoError(t, err)
			if seen.Violation != nil {
				t.Fatalf("%s\n  %s", seen.Violation.Promise, strings.Join(seen.Violation.Steps, "\n  "))
			}
			t.Logf("%d states", seen.States)
		})
	}
}

// Each of the rules is necessary: without it there is a way to a broken promise.
func TestEachRuleIsNecessary(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		off    func(*Rules)
		scene  string
		breaks string
	}{
		"status under lock": {func(r *Rules) { r.UnderLock = false }, "operator", "is SENT, but"},
		"sweep":             {func(r *Rules) { r.Sweep = false }, "crash", "nobody will ever finish"},
		"blocked by any":    {func(r *Rules) { r.BlockedByAny = false }, "expiry", "before that of an earlier event"},
		"last look":         {func(r *Rules) { r.LastLook = false }, "freeze", "twice"},
		"parked ones count": {func(r *Rules) { r.ParkedCounts = false }, "deploy", "before that of an earlier event"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rules := All()
			c.off(&rules)
			seen, err := Explore(rules, scenes[c.scene], most)
			require.NoError(t, err)
			require.NotNil(t, seen.Violation, "the model does not see what the rule is for")
			t.Logf("after %d states: %s\n  %s", seen.States, seen.Violation.Promise, strings.Join(seen.Violation.Steps, "\n  "))
			require.Contains(t, seen.Violation.Promise, c.breaks)
		})
	}
}
