package settings_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bluecone-go/bluecone/demo/bluecone/settings"
	"github.com/bluecone-go/bluecone/internal/hostile"
)

// Whatever stands in the file and in the environment: the settings are usable, or the mistakes are
// named.
func FuzzSettings(f *testing.F) {
	for _, v := range hostile.Values() {
		f.Add(v.Text, v.Text)
		f.Add("bluecone:\n  outbox:\n    batch-size: "+v.Text, "10")
		f.Add("bluecone:\n  outbox:\n    publisher-cron: "+v.Text, "1")
	}
	f.Add("bluecone: &a [*a]", "TZ=0")
	f.Add("bluecone: {outbox: {batch-size: 5}}", "0x10")
	f.Fuzz(func(t *testing.T, yaml, value string) {
		path := filepath.Join(t.TempDir(), "bluecone.yaml")
		if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := settings.Load(path, []string{"BLUECONE_OUTBOX_MAX_RETRY_COUNT=" + value})
		if err != nil {
			if !strings.Contains(err.Error(), "config ") && !strings.Contains(err.Error(), "BLUECONE_OUTBOX_MAX_RETRY_COUNT") {
				t.Errorf("%q, %q: %v", yaml, value, err)
			}
			return
		}
		if s.BatchSize < 1 || s.MaxRetryCount < 1 || s.LockTimeout <= 0 || s.ScanWindow <= 0 {
			t.Errorf("%q, %q: %+v", yaml, value, s)
		}
		if n := len(strings.Fields(s.PublisherCron)); n != 5 && n != 6 && !strings.HasPrefix(s.PublisherCron, "@") {
			t.Errorf("%q, %q: the cron expression is %q", yaml, value, s.PublisherCron)
		}
	})
}
