package monolith

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/bluecone-go/bluecone/alert"
)

// newAlerter tells the log, and the webhook if there is one.
func newAlerter(a *App, o Options) (*alert.Alerter, error) {
	s := o.Settings.Alert
	routes := []alert.Route{{Name: "log", Sink: alert.Log(o.Logger)}}
	if s.Webhook.URL != "" {
		hook, err := alert.Webhook(s.Webhook)
		if err != nil {
			return nil, fmt.Errorf("bluecone.alert.webhook: %w", err)
		}
		routes = append(routes, alert.Route{Name: "webhook", Sink: hook, Least: s.Least})
	}
	jobs := make(map[string]string)
	for _, j := range []interface{ Schedule() (code, cron string) }{a.Reaper, a.Consistency, a.Retention} {
		code, cron := j.Schedule()
		jobs[code] = cron
	}
	cfg := alert.Config{
		Routes: routes, Service: "bluecone-demo", Environment: s.Environment, Cron: s.Cron, Runbook: s.Runbook,
		Instance: a.Outbox.Instance(), Logger: o.Logger,
		Jobs: jobs,
	}
	if s.Console != "" {
		cfg.Link = func(n alert.Notice) string { return link(s.Console, n) }
	}
	return alert.New(a.DB, a.Outbox, cfg)
}

// link is the page of the console that shows what a message is about.
func link(console string, n alert.Notice) string {
	page, filter := "", []string{"consumer", n.Consumer, "eventType", n.EventType}
	switch n.Rule {
	case alert.RuleDead:
		page = "events"
		if n.Consumer != "" {
			filter = append(filter, "deliveryStatus", "DEAD")
		} else {
			filter = append(filter, "status", "DEAD")
		}
	case alert.RuleLag, alert.RuleCircuit:
		page, filter = "events", append(filter, "deliveryStatus", "FAILED")
	case alert.RuleVersion:
		page, filter = "events", append(filter, "deliveryStatus", "PENDING")
	case alert.RuleLate, alert.RuleStalled:
		page, filter = "events", append(filter, "status", "NEW")
	case alert.RuleUnconsumed:
		page, filter = "events", append(filter, "status", "SCHEDULED")
	case alert.RuleFailures, alert.RulePaused, alert.RuleUnregistered:
		page, filter = "consumers", nil
	case alert.RuleJobLate, alert.RuleJobFailed, alert.RuleRepairs:
		page, filter = "jobs", nil
	case alert.RuleClock:
		page, filter = "instances", nil
	}
	query := url.Values{}
	for i := 0; i+1 < len(filter); i += 2 {
		if filter[i+1] != "" {
			query.Set(filter[i], filter[i+1])
		}
	}
	address := strings.TrimSuffix(console, "/") + "/" + page
	if len(query) > 0 {
		address += "?" + query.Encode()
	}
	return address
}
