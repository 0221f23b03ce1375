package cli

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bluecone-go/bluecone/ops"
)

// choice is a flag with a fixed set of values, whatever their case.
type choice struct {
	of []string
	is string
}

// String is part of pflag.Value.
func (c *choice) String() string { return c.is }

// Type is part of pflag.Value.
func (c *choice) Type() string { return "word" }

// Set is part of pflag.Value.
func (c *choice) Set(s string) error {
	i := slices.IndexFunc(c.of, func(o string) bool { return strings.EqualFold(o, s) })
	if i < 0 {
		return errors.New("use " + either(c.of))
	}
	c.is = c.of[i]
	return nil
}

func either(words []string) string {
	if len(words) == 1 {
		return words[0]
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// moment is a flag that is a time: a point in it, or so long ago (or from now on, if ahead).
type moment struct {
	at    time.Time
	ahead bool
}

// String is part of pflag.Value.
func (m *moment) String() string {
	if m.at.IsZero() {
		return ""
	}
	return m.at.Format(time.RFC3339)
}

// Type is part of pflag.Value.
func (m *moment) Type() string { return "time" }

// Set is part of pflag.Value.
func (m *moment) Set(s string) error {
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		if m.ahead {
			d = -d
		}
		m.at = time.Now().Add(-d).UTC()
		return nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", minute, "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			m.at = t.UTC()
			return nil
		}
	}
	side := "so long ago"
	if m.ahead {
		side = "so long from now"
	}
	return fmt.Errorf("it is no time: write 2006-01-02T15:04 (UTC), 2006-01-02T15:04:05+02:00, or 2h for %s", side)
}

// write is what every command has that changes something.
type write struct {
	actor, reason string
	dryRun        bool
}

// addWrite adds the flags, and demands a reason unless it is a dry run.
func addWrite(cmd *cobra.Command) *write {
	w := &write{}
	w.flags(cmd)
	before(cmd, func(cmd *cobra.Command) error {
		if w.dryRun {
			return nil
		}
		return w.demand(cmd, "")
	})
	return w
}

func (w *write) flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&w.dryRun, "dry-run", false, "change nothing, only say what would be done")
	w.add(cmd, "why; kept in the audit log (required, unless --dry-run)")
}

func (w *write) add(cmd *cobra.Command, reason string) {
	cmd.Flags().StringVar(&w.reason, "reason", "", reason)
	cmd.Flags().StringVar(&w.actor, "actor", "", "who; kept in the audit log (default: the name of the user)")
	complete(cmd, "reason")
	complete(cmd, "actor")
}

func (w *write) demand(cmd *cobra.Command, with string) error {
	if strings.TrimSpace(w.reason) == "" {
		return usage("%s%s: --reason is missing: say why, it is kept in the audit log", cmd.CommandPath(), with)
	}
	if w.actor == "" {
		w.actor = userName()
	}
	if w.actor == "" || len(w.actor) > 128 {
		return usage("--actor %q: say who you are, in at most 128 bytes", w.actor)
	}
	return nil
}

func (w *write) operation() ops.Operation { return ops.Operation{Actor: w.actor, Reason: w.reason} }

// userName is who sits at the terminal, also behind sudo.
func userName() string {
	if name := os.Getenv("SUDO_USER"); name != "" {
		return name
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return os.Getenv("USER")
}

// before adds a check of the flags that comes before the deployment is opened.
func before(cmd *cobra.Command, check func(cmd *cobra.Command) error) {
	earlier := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if earlier != nil {
			if err := earlier(cmd, args); err != nil {
				return err
			}
		}
		return check(cmd)
	}
}

// atLeast demands that a number or a duration is not smaller than least.
func atLeast[T int | int64 | float64 | time.Duration](cmd *cobra.Command, flag string, value *T, least T) {
	before(cmd, func(*cobra.Command) error {
		if *value < least {
			return usage("--%s %v: it must be at least %v", flag, *value, least)
		}
		return nil
	})
}

// result is what a command that changes something answers.
type result struct {
	Action string `json:"action"`
	Target string `json:"target"`
	DryRun bool   `json:"dryRun"`
	Says   string `json:"says"`
}

// done prints what has been done, or would have been.
func (c *call) done(w *write, action, target, text string, args ...any) error {
	r := result{Action: action, Target: target, DryRun: w.dryRun, Says: fmt.Sprintf(text, args...)}
	if w.dryRun {
		r.Says = "dry run, nothing is changed: " + r.Says
	}
	if c.format == "json" || c.format == "csv" {
		v := view{columns: []string{"action", "target", "dryRun", "says"}}
		v.add(r.Action, r.Target, r.DryRun, r.Says)
		return c.print(v, r)
	}
	return c.say("%s", r.Says)
}
