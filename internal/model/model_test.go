//go:build !race

// Whoever explores the model is alone with it: the race detector would only take six times as long.

package model

import (
	"cmp"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const most = 2_000_000

var scenes = map[string]Scene{
	"crash":                 {Events: 2, Consumers: 2, Faults: Faults{Crashes: 1, Failures: 1}},
	"freeze":                {Events: 2, Consumers: 2, Faults: Faults{Freezes: 1, Retentions: 1}},
	"freeze, one consumer":  {Events: 2, Consumers: 1, Faults: Faults{Freezes: 1, Failures: 1, Retentions: 1}},
	"expiry":                {Events: 2, Consumers: 2, Faults: Faults{Expiries: 1, Failures: 1}},
	"operator":              {Events: 2, Consumers: 2, Faults: Faults{Failures: 1, Operations: 2}},
	"full lane":             {Events: 2, Consumers: 2, Faults: Faults{Spills: 1, Failures: 1, Operations: 1}},
	"three events":          {Events: 3, Consumers: 1, Faults: Faults{Failures: 1, Spills: 1, Operations: 1}, Discards: true},
	"three events, crash":   {Events: 3, Consumers: 1, Faults: Faults{Failures: 1, Crashes: 1}},
	"put back":              {Events: 3, Consumers: 1, Faults: Faults{Spills: 1, PutBacks: 1}},
	"past":                  {Events: 3, Consumers: 1, Faults: Faults{Failures: 1}, Past: []int{0}},
	"two past":              {Events: 3, Consumers: 1, Faults: Faults{Crashes: 1, Retentions: 1}, Past: []int{0, 1}},
	"newcomer":              {Events: 2, Consumers: 2, Faults: Faults{Failures: 1}, Release: Release{Newcomer: true}},
	"newcomer, crash":       {Events: 2, Consumers: 2, Faults: Faults{Crashes: 1}, Release: Release{Newcomer: true}},
	"continue":              {Events: 3, Consumers: 1, Faults: Faults{Failures: 1, Operations: 1}, Continue: true},
	"late commit":           {Events: 3, Consumers: 1, Faults: Faults{Failures: 1, Spills: 1}, Late: []int{0}},
	"delayed":               {Events: 2, Consumers: 1, Faults: Faults{Failures: 2, Crashes: 1}, Delayed: []int{0}},
	"delayed, lost lease":   {Events: 2, Consumers: 1, Faults: Faults{Failures: 1, Expiries: 1, Spills: 1}, Delayed: []int{0}},
	"delayed, three events": {Events: 3, Consumers: 1, Faults: Faults{Failures: 1, Spills: 1}, Delayed: []int{0}},
	"two delayed":           {Events: 3, Consumers: 1, Faults: Faults{Spills: 1}, Delayed: []int{0, 1}},
	"unwanted type":         {Events: 3, Consumers: 2, Unwanted: []int{0}},
	"new type":              {Events: 2, Consumers: 2, Faults: Faults{Failures: 1}, Release: Release{NewTypes: ofFirst}},
	"takes more":            {Events: 2, Consumers: 2, Faults: Faults{Failures: 1}, Release: Release{NewTypes: ofFirstBySecond}},
	"takes more, crash":     {Events: 2, Consumers: 2, Faults: Faults{Crashes: 1}, Release: Release{NewTypes: ofFirstBySecond}},
	"takes more, three events": {
		Events: 3, Consumers: 1, Faults: Faults{Failures: 1, Operations: 1}, Discards: true,
		Release: Release{NewTypes: ofFirst},
	},
	"new version":               {Events: 2, Consumers: 2, Faults: Faults{Failures: 1}, Release: Release{NewVersions: ofFirst}},
	"new version, three events": {Events: 3, Consumers: 1, Faults: Faults{Failures: 1}, Release: Release{NewVersions: ofFirst}},
	"renamed": {
		Events: 2, Consumers: 1, Faults: Faults{Crashes: 1, Expiries: 1, Failures: 1, Operations: 1},
		Release: Release{Renamed: true},
	},
	"tenants": {Events: 3, Consumers: 1, Faults: Faults{Failures: 1, Operations: 1}, Tenants: true},
	"replay":  {Events: 2, Consumers: 1, Faults: Faults{Operations: 3, Retentions: 1}, Replayable: true},
	"away":    {Events: 2, Consumers: 2, Faults: Faults{Freezes: 1}, Apart: true},
}

func ofFirst(_, event int) bool { return event == 0 }

func ofFirstBySecond(consumer, event int) bool { return event == 0 && consumer == 1 }

// look is what came of exploring a scene with all rules on.
type look struct {
	Explored
	err    error
	differ int    // answers that differ for the known reason
	wrong  string // one that differs for another
}

// looks explores each scene once, for all tests that want to know.
var looks = func() map[string]func() look {
	looks := make(map[string]func() look)
	for name, scene := range scenes {
		looks[name] = sync.OnceValue(func() (l look) {
			w := newWorld(All(), scene)
			l.Explored, l.err = w.explore(most, func(s *state) {
				n, wrong := w.compareQuestions(s)
				l.differ, l.wrong = l.differ+n, cmp.Or(l.wrong, wrong)
			})
			return l
		})
	}
	return looks
}()

// With all rules on, nothing that can happen breaks a promise.
func TestEnginesRulesSuffice(t *testing.T) {
	t.Parallel()
	for name, look := range looks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := look()
			require.NoError(t, l.err)
			if l.Violation != nil {
				t.Fatalf("%s\n  %s", l.Violation.Promise, strings.Join(l.Violation.Steps, "\n  "))
			}
			t.Logf("%s: %d states", name, l.States)
		})
	}
}

// The question in two halves says the same as the question about any earlier event, in every state.
// They differ only where an event was handed out before the consumer took its type: it has no
// delivery, and is in nobody's way unless a backfill gives it one.
func TestSplitQuestionIsExact(t *testing.T) {
	t.Parallel()
	for name, look := range looks {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := look()
			require.NoError(t, l.err)
			require.Empty(t, l.wrong)
			require.Equal(t, name == "takes more" || name == "newcomer", l.differ > 0, "%d answers differ", l.differ)
		})
	}
}

// compareQuestions asks both questions for all events and consumers. It counts the answers that
// differ for the known reason, and names one that differs for another.
func (w *questions) compareQuestions(s *state) (differ int, wrong string) {
	for i := range instances {
		for n := range w.scene.Consumers {
			for e := range w.scene.Events {
				a := asker{instance: i, name: n}
				earlier, split := w.isBehind(AnyEarlier, s, a, e), w.isBehind(Split, s, a, e)
				switch {
				case earlier == split:
				case earlier && w.isHandedOutBefore(s, a, e):
					differ++
				default:
					return differ, fmt.Sprintf("the answers differ for consumer %d and event %d: any earlier %v, split %v", n, e, earlier, split)
				}
			}
		}
	}
	return differ, ""
}

// isHandedOutBefore tells whether all that is in the way was handed out before the consumer took its type.
func (w *questions) isHandedOutBefore(s *state, a asker, e int) bool {
	for p := range e {
		if w.isPredecessor(s, a, p, e) && (s.isInHand(p) || s.log[a.name][p].status != none || s.events[p].needed&(1<<a.name) != 0) {
			return false
		}
	}
	return true
}

// In a crash loop only the delivery that kills ends DEAD.
func TestCrashLoopKillsOnlyTheKiller(t *testing.T) {
	t.Parallel()
	seen, err := ExploreCrashLoop(All())
	require.NoError(t, err)
	require.Nil(t, seen.Violation)
	t.Logf("%d states", seen.States)
}

// Each of the rules is necessary: without it there is a way to a broken promise.
func TestEachRuleIsNecessary(t *testing.T) {
	t.Parallel()
	const disorder = "before that of an earlier event"
	for name, c := range map[string]struct {
		off    func(*Rules)
		scene  string
		breaks string
	}{
		"status under lock":            {func(r *Rules) { r.UnderLock = false }, "operator", "is SENT, but"},
		"sweep":                        {func(r *Rules) { r.Sweep = false }, "three events, crash", "nobody will ever finish"},
		"events in hand are asked for": {func(r *Rules) { r.Question = UnfinishedRows }, "three events", "two instances"},
		"parked ones are in hand":      {func(r *Rules) { r.ParkedInHand = false }, "new type", disorder},
		"parked ones let pass":         {func(r *Rules) { r.ParkedLetsPass = false }, "unwanted type", "nobody will ever finish"},
		"direct deliveries ask":        {func(r *Rules) { r.DirectAsk = false }, "full lane", disorder},
		"they ask, late commit":        {func(r *Rules) { r.DirectAsk = false }, "late commit", disorder},
		"they ask, new type":           {func(r *Rules) { r.DirectAsk = false }, "new type", disorder},
		"batches in order":             {func(r *Rules) { r.BatchInOrder = false }, "put back", disorder},
		"past first":                   {func(r *Rules) { r.PastFirst = false }, "past", disorder},
		"past once":                    {func(r *Rules) { r.PastOnce = false }, "past", "twice"},
		"past in flight":               {func(r *Rules) { r.PastInFlightWaits = false }, "newcomer", disorder},
		"later ones in flight":         {func(r *Rules) { r.LaterInFlight = false }, "delayed", "two instances"},
		"running elsewhere":            {func(r *Rules) { r.RunningElsewhere = false }, "delayed", "two instances"},
		"running behind others":        {func(r *Rules) { r.RunningBehind = false }, "two delayed", "two instances"},
		"running past its lease":       {func(r *Rules) { r.RunningPastLease = false }, "delayed, lost lease", "two instances"},
		"newer versions wait":          {func(r *Rules) { r.VersionsWait = false }, "new version", "never failed"},
		"durable key":                  {func(r *Rules) { r.DurableKey = false }, "renamed", "twice"},
		"tenant in the key":            {func(r *Rules) { r.TenantInKey = false }, "tenants", "nobody will ever finish"},
		"retention locks":              {func(r *Rules) { r.RetentionLocks = false }, "replay", "twice"},
		"registrations stay":           {func(r *Rules) { r.RegistrationStays = false }, "away", "is SENT, but"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rules := All()
			c.off(&rules)
			seen, err := Explore(rules, scenes[c.scene], most)
			requireBroken(t, c.breaks, seen, err)
		})
	}
}

// The nearest earlier event is not enough.
func TestNearestPredecessorIsNotEnough(t *testing.T) {
	t.Parallel()
	for name, scene := range map[string]Scene{
		"an operator skips":     {Events: 3, Consumers: 1, Faults: Faults{Spills: 2, Failures: 1, Operations: 1}},
		"a dead one is retried": {Events: 3, Consumers: 1, Faults: Faults{Failures: 1, Operations: 1}, Continue: true},
		"a delayed one is due":  scenes["delayed, three events"],
		"a newer release":       scenes["takes more, three events"],
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rules := All()
			rules.Question = Nearest
			seen, err := Explore(rules, scene, most)
			requireBroken(t, "before that of an earlier event", seen, err)
		})
	}
}

// Each of the rules for crash loops is necessary too.
func TestEachRuleOfCrashLoopsIsNecessary(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		off    func(*Rules)
		breaks string
	}{
		"counted by outcome":            {func(r *Rules) { r.CountedByOutcome = false }, "does not kill"},
		"suspects run alone":            {func(r *Rules) { r.RunsAlone = false }, "does not kill"},
		"suspects are counted at first": {func(r *Rules) { r.CountedFirst = false }, "nobody will ever finish"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rules := All()
			c.off(&rules)
			seen, err := ExploreCrashLoop(rules)
			requireBroken(t, c.breaks, seen, err)
		})
	}
}

// requireBroken fails unless the promise was seen broken, and shows the way.
func requireBroken(t *testing.T, promise string, seen Explored, err error) {
	t.Helper()
	require.NoError(t, err)
	require.NotNil(t, seen.Violation, "the model does not see what the rule is for")
	t.Logf("after %d states: %s\n  %s", seen.States, seen.Violation.Promise, strings.Join(seen.Violation.Steps, "\n  "))
	require.Contains(t, seen.Violation.Promise, promise)
}
