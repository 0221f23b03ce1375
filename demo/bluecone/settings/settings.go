// Package settings reads the demo's configuration: the keys of the original design, from
// YAML, each of which an environment variable can override.
package settings

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	"github.com/robfig/cron/v3"

	"github.com/bluecone-go/bluecone/alert"
)

// Settings are the values of all keys.
type Settings struct {
	LockTimeout   time.Duration // bluecone.asset.lock-timeout-minutes. Default: 30 min.
	ScanWindow    time.Duration // bluecone.consistency.scan-window-hours. Default: 24 h.
	BatchSize     int           // bluecone.outbox.batch-size. Default: 100.
	MaxRetryCount int           // bluecone.outbox.max-retry-count. Default: 10.
	PublisherCron string        // bluecone.outbox.publisher-cron. Default: 0/10 * * * * ?
	ReaperCron    string        // bluecone.scheduler.lock-timeout-reaper-cron. Default: 0 */5 * * * ?
	CheckCron     string        // bluecone.scheduler.consistency-check-cron. Default: 0 0 */2 * * ?
	Alert         Alert
}

// Alert says where alerts go, besides the log.
type Alert struct {
	Cron        string              // bluecone.alert.cron. Default: 0/30 * * * * ?
	Environment string              // bluecone.alert.environment. Default: none.
	Console     string              // bluecone.alert.console, the address of the console that messages link to. Default: none.
	Runbook     string              // bluecone.alert.runbook, the address of docs/operations.md. Default: that path.
	Webhook     alert.WebhookConfig // bluecone.alert.webhook.url, .format and .secret. Default: none.
	Least       alert.Level         // bluecone.alert.webhook.least. Default: WARN.
}

// Default is what holds without any configuration.
func Default() Settings {
	return Settings{
		LockTimeout: 30 * time.Minute, ScanWindow: 24 * time.Hour, BatchSize: 100, MaxRetryCount: 10,
		PublisherCron: "0/10 * * * * ?", ReaperCron: "0 */5 * * * ?", CheckCron: "0 0 */2 * * ?",
		Alert: Alert{Cron: "0/30 * * * * ?", Least: alert.Warn},
	}
}

// setters reads the text of each key into its field.
func (s *Settings) setters() map[string]func(text string) error {
	return map[string]func(string) error{
		"bluecone.asset.lock-timeout-minutes":         duration(&s.LockTimeout, time.Minute),
		"bluecone.consistency.scan-window-hours":      duration(&s.ScanWindow, time.Hour),
		"bluecone.outbox.batch-size":                  number(&s.BatchSize, 1, 999),
		"bluecone.outbox.max-retry-count":             number(&s.MaxRetryCount, 1, 1000),
		"bluecone.outbox.publisher-cron":              cronText(&s.PublisherCron),
		"bluecone.scheduler.lock-timeout-reaper-cron": cronText(&s.ReaperCron),
		"bluecone.scheduler.consistency-check-cron":   cronText(&s.CheckCron),
		"bluecone.alert.cron":                         cronText(&s.Alert.Cron),
		"bluecone.alert.environment":                  word(&s.Alert.Environment),
		"bluecone.alert.console":                      word(&s.Alert.Console),
		"bluecone.alert.runbook":                      word(&s.Alert.Runbook),
		"bluecone.alert.webhook.url":                  word(&s.Alert.Webhook.URL),
		"bluecone.alert.webhook.format": choice(&s.Alert.Webhook.Format, alert.JSON, alert.DingTalk, alert.WeCom, alert.Feishu,
			alert.Slack),
		"bluecone.alert.webhook.secret": word(&s.Alert.Webhook.Secret),
		"bluecone.alert.webhook.least":  choice(&s.Alert.Least, alert.Warn, alert.Critical),
	}
}

// Load reads the YAML file, if path is not empty, and then the environment. All mistakes
// are reported at once, each with its key.
func Load(path string, environ []string) (Settings, error) {
	s := Default()
	setters := s.setters()
	var errs []error
	if path != "" {
		errs = append(errs, fromFile(path, setters))
	}
	errs = append(errs, fromEnvironment(environ, setters))
	return s, errors.Join(errs...)
}

func fromFile(path string, setters map[string]func(string) error) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("config %s: %w", path, err)
	}
	k := koanf.New(".")
	if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
		return fmt.Errorf("config %s: %s", path, strings.Join(strings.Fields(err.Error()), " "))
	}
	var errs []error
	for _, key := range k.Keys() {
		set, ok := setters[key]
		if !ok {
			errs = append(errs, fmt.Errorf("config %s: the key %q is unknown; the keys are %s", path, key, strings.Join(known(setters), ", ")))
			continue
		}
		if err := set(k.String(key)); err != nil {
			errs = append(errs, fmt.Errorf("config %s: %s: %w", path, key, err))
		}
	}
	return errors.Join(errs...)
}

// fromEnvironment reads BLUECONE_ASSET_LOCK_TIMEOUT_MINUTES and the like.
func fromEnvironment(environ []string, setters map[string]func(string) error) error {
	names := make(map[string]string, len(setters))
	for key := range setters {
		names[strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(key))] = key
	}
	var errs []error
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, "BLUECONE_") || strings.HasPrefix(name, "BLUECONE_TEST_") {
			continue
		}
		key, ok := names[name]
		if !ok {
			errs = append(errs, fmt.Errorf("the environment variable %s is unknown", name))
			continue
		}
		if err := setters[key](value); err != nil {
			errs = append(errs, fmt.Errorf("environment variable %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func known(setters map[string]func(string) error) []string {
	keys := make([]string, 0, len(setters))
	for k := range setters {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// duration reads a bare number in the unit of the key's name, or a duration such as 5s.
func duration(into *time.Duration, unit time.Duration) func(string) error {
	return func(text string) error {
		d, err := time.ParseDuration(text)
		if n, e := strconv.ParseInt(text, 10, 64); e == nil {
			d, err = time.Duration(n)*unit, nil
		}
		if err != nil || d <= 0 || d > 10*365*24*time.Hour {
			return fmt.Errorf("%q is not a positive number or a duration such as 5s", text)
		}
		*into = d
		return nil
	}
}

func number(into *int, least, most int) func(string) error {
	return func(text string) error {
		n, err := strconv.Atoi(text)
		if err != nil || n < least || n > most {
			return fmt.Errorf("%q is not a whole number between %d and %d", text, least, most)
		}
		*into = n
		return nil
	}
}

// checkCron refuses what is no cron expression. The library refuses the rest, such as a date that never comes.
func checkCron(text string) (err error) {
	defer func() {
		if v := recover(); v != nil { // the parser panics on some malformed input
			err = fmt.Errorf("cron expression %q cannot be parsed: %v", text, v)
		}
	}()
	if strings.Contains(text, "TZ=") {
		return fmt.Errorf("cron expression %q names a time zone: schedules are always UTC", text)
	}
	fields := cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor
	if _, err := cron.NewParser(fields).Parse(text); err != nil {
		return fmt.Errorf("cron expression %q: %w", text, err)
	}
	return nil
}

func cronText(into *string) func(string) error {
	return func(text string) error {
		if err := checkCron(text); err != nil {
			return err
		}
		*into = text
		return nil
	}
}

// word reads any text.
func word(into *string) func(string) error {
	return func(text string) error {
		*into = text
		return nil
	}
}

func choice[T ~string](into *T, allowed ...T) func(string) error {
	return func(text string) error {
		if !slices.Contains(allowed, T(text)) {
			return fmt.Errorf("%q is none of %q", text, allowed)
		}
		*into = T(text)
		return nil
	}
}
