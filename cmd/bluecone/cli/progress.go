package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/bluecone-go/bluecone/ops"
)

// beat is how often progress is told where there is no terminal.
const beat = 10 * time.Second

// progress of long work: a bar on a terminal, and a line every ten seconds elsewhere.
type progress struct {
	w     io.Writer
	what  string
	total ops.Count
	bar   *progressbar.ProgressBar // nil without a terminal
	told  time.Time
}

func newProgress(w io.Writer, what string, total ops.Count) *progress {
	p := &progress{w: w, what: what, total: total, told: time.Now()}
	if columns, ok := width(w); ok {
		most := total.Count
		if total.More || most == 0 {
			most = -1 // unknown: a spinner
		}
		p.bar = progressbar.NewOptions64(most, progressbar.OptionSetWriter(w), progressbar.OptionSetDescription(clean(what)),
			progressbar.OptionSetWidth(min(30, columns/3)), progressbar.OptionShowCount(), progressbar.OptionSetPredictTime(true),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
	}
	return p
}

func (p *progress) set(done int64) {
	if p.bar != nil {
		if !p.total.More {
			done = min(done, p.total.Count)
		}
		_ = p.bar.Set64(done) // it only decorates
		return
	}
	if time.Since(p.told) >= beat {
		p.told = time.Now()
		of := " of " + count(p.total)
		if p.total.Count == 0 {
			of = " so far"
		}
		_, _ = fmt.Fprintf(p.w, "%s: %d%s\n", clean(p.what), done, of) // it only decorates
	}
}

func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Finish() // it only decorates
	}
}

// meanwhile shows that fn is at work, whose length nobody knows.
func (c *call) meanwhile(what string, fn func() error) error {
	began := time.Now()
	done := make(chan error, 1)
	go func() { done <- fn() }()
	bar := newProgress(c.cmd.ErrOrStderr(), what, ops.Count{More: true})
	defer bar.end()
	tick := time.NewTicker(glance)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			bar.set(int64(time.Since(began).Seconds())) // seconds
		}
	}
}
