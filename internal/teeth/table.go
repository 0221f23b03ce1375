package main

import (
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/internal/report"
)

// verdicts is a table of which test caught which sabotage, and when that was seen.
type verdicts struct {
	path string              // of the document; without one nothing is kept
	rows map[string][]string // by the names of the sabotages
}

func readTable(path string) (verdicts, error) {
	v := verdicts{path, make(map[string][]string)}
	if path == "" {
		return v, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return v, err
	}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) == columns {
			v.rows[cells[0]] = cells
		}
	}
	return v, nil
}

// columns of the table: the sabotage, where it is, who caught it, and when that was seen.
const columns = 4

func (v verdicts) has(s sabotage) bool { return v.rows[s.name] != nil }

// add writes the table with the result. Sabotages that are no longer in the list lose their rows.
func (v verdicts) add(s sabotage, caught []string) error {
	if v.path == "" {
		return nil
	}
	by := "**nobody**"
	if len(caught) > 0 {
		by = "`" + strings.Join(caught, "`, `") + "`"
	}
	seen, err := moment()
	if err != nil {
		return err
	}
	v.rows[s.name] = []string{s.name, s.file, by, seen}
	t := report.Table{Head: []string{"sabotage", "where", "caught by", "seen"}}
	for _, s := range sabotages() {
		if row, ok := v.rows[s.name]; ok {
			row[1] = s.file
			t.Rows = append(t.Rows, row)
		}
	}
	return report.Write(v.path, "teeth", t.String())
}

// moment is the day, the commit, and the databases if not all of them were asked for.
func moment() (string, error) {
	commit, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output() //nolint:noctx // it ends by itself
	if err != nil {
		return "", err
	}
	seen := time.Now().Format(time.DateOnly) + ", " + strings.TrimSpace(string(commit))
	if only := os.Getenv("BLUECONE_TEST_ONLY"); only != "" {
		seen += ", " + only
	}
	return seen, nil
}
