// Package report puts what a run of the tests has found into a document, between two marks.
package report

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
)

// Table is a table in Markdown.
type Table struct {
	Head []string
	Rows [][]string
}

// String is the table with its columns aligned.
func (t Table) String() string {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 1, ' ', 0)
	line := func(cells []string) { _, _ = fmt.Fprintf(tw, "| %s\t|\n", strings.Join(cells, "\t| ")) }
	line(t.Head)
	_, _ = fmt.Fprintln(tw, strings.Repeat("|---\t", len(t.Head))+"|")
	for _, r := range t.Rows {
		line(r)
	}
	_ = tw.Flush() // a strings.Builder takes everything
	return b.String()
}

// Write replaces what is between <!-- name … --> and <!-- /name --> in the file.
func Write(path, name, text string) error {
	whole, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(whole), "<!-- "+name+":")
	mark, rest, ok2 := strings.Cut(rest, "-->")
	_, after, ok3 := strings.Cut(rest, "<!-- /"+name+" -->")
	if !ok || !ok2 || !ok3 {
		return fmt.Errorf("%s has no marks <!-- %s: … --> and <!-- /%s -->", path, name, name)
	}
	text = before + "<!-- " + name + ":" + mark + "-->\n\n" + text + "\n<!-- /" + name + " -->" + after
	return os.WriteFile(path, []byte(text), 0o644) //nolint:gosec // a document
}
