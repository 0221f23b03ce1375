package cli

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/bluecone-go/bluecone/ops"
)

// format is how results are printed: a flag.
type format string

var formats = []string{"table", "json", "csv"} //nolint:gochecknoglobals // a constant

// String is part of pflag.Value.
func (f *format) String() string {
	if *f == "" {
		return "table"
	}
	return string(*f)
}

// Set is part of pflag.Value.
func (f *format) Set(s string) error {
	c := choice{of: formats}
	err := c.Set(s)
	*f = format(c.is)
	return err
}

// Type is part of pflag.Value.
func (f *format) Type() string { return "format" }

// view is a result as rows. The names of the columns are those of the JSON.
type view struct {
	columns []string
	rows    [][]any
	named   int // the last so many columns are names from the database, to be left as they are
}

func (v *view) add(cells ...any) { v.rows = append(v.rows, cells) }

// printer writes what a command answers.
type printer struct {
	cmd    *cobra.Command
	format format
}

// print writes a result to standard output: value as JSON, or v as table or CSV.
func (c printer) print(v view, value any) error {
	w := c.cmd.OutOrStdout()
	switch c.format {
	case "json":
		return printJSON(w, value)
	case "csv":
		return printCSV(w, v)
	}
	return printTable(w, v)
}

// say writes a line for people, unless the output is for a program.
func (c printer) say(text string, args ...any) error {
	if c.format == "json" || c.format == "csv" {
		return nil
	}
	_, err := fmt.Fprintln(c.cmd.OutOrStdout(), clean(fmt.Sprintf(text, args...)))
	return err
}

// title writes an empty line, and one with the text if there is any.
func (c printer) title(text string) error {
	if err := c.say(""); err != nil || text == "" {
		return err
	}
	return c.say("%s", text)
}

// note writes a line beside the result.
func (c printer) note(text string, args ...any) {
	_, _ = fmt.Fprintln(c.cmd.ErrOrStderr(), clean(fmt.Sprintf(text, args...))) // the result matters more
}

func printJSON(w io.Writer, value any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(value); err != nil {
		return err
	}
	_, err := w.Write(harmless(b.Bytes()))
	return err
}

// harmless spells what encoding/json leaves alone but a terminal obeys as escapes of JSON.
func harmless(text []byte) []byte {
	if !bytes.ContainsFunc(text, func(r rune) bool { return r != '\n' && dangerous(r) }) {
		return text
	}
	var b bytes.Buffer
	for _, r := range string(text) {
		if r != '\n' && dangerous(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.Bytes()
}

func printCSV(w io.Writer, v view) error {
	out := csv.NewWriter(w)
	if err := out.Write(v.columns); err != nil {
		return err
	}
	for _, row := range v.rows {
		if err := out.Write(exactly(row)); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

func exactly(row []any) []string {
	cells := make([]string, len(row))
	for i, v := range row {
		cells[i] = exact(v)
	}
	return cells
}

// exact is a cell for a program. What a spreadsheet would take for a formula begins with an apostrophe.
func exact(v any) string {
	switch v := v.(type) {
	case time.Time:
		if v.IsZero() {
			return ""
		}
		return v.UTC().Format(time.RFC3339Nano)
	case time.Duration:
		return strconv.FormatFloat(v.Seconds(), 'f', -1, 64)
	case ops.Count:
		return strconv.FormatInt(v.Count, 10)
	case string, []string, fmt.Stringer:
		s := clean(plain(v))
		if isFormula(s) {
			s = "'" + s
		}
		return s
	}
	return clean(plain(v))
}

// isFormula reports whether a spreadsheet would take a text for a formula: some do so with characters of full width, too.
func isFormula(s string) bool {
	first, _ := utf8.DecodeRuneInString(strings.TrimLeftFunc(s, unicode.IsSpace))
	return strings.ContainsRune("=+-@＝＋－＠﹦﹢﹣﹫", first)
}

func plain(v any) string {
	if list, ok := v.([]string); ok {
		return strings.Join(list, ", ")
	}
	return fmt.Sprint(v)
}

// legible is a cell for people.
func legible(v any) string {
	s := ""
	switch v := v.(type) {
	case time.Time:
		return stamp(v)
	case time.Duration:
		return span(v)
	case ops.Count:
		return count(v)
	case bool:
		if v {
			s = "yes"
		}
	case float64:
		s = strconv.FormatFloat(v, 'f', 1, 64)
	default:
		s = clean(plain(v))
	}
	if s == "" {
		return none
	}
	return s
}

// header turns the name of a column into words: createdAt becomes CREATED (UTC).
func header(column string) string {
	base, isTime := strings.CutSuffix(column, "At")
	if column == "at" {
		isTime = true
	}
	var b strings.Builder
	for _, r := range base {
		if unicode.IsUpper(r) {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToUpper(r))
	}
	if isTime {
		b.WriteString(" (UTC)")
	}
	return b.String()
}

// printTable aligns columns by what they measure on a screen, and leaves out those that are empty.
// On a terminal, what the last column says goes on a line of its own if the rows are too long.
func printTable(w io.Writer, v view) error {
	head, rows := cells(v)
	edge, screen := width(w)
	lines := aligned(head, rows, 0)
	var tails []string
	if screen && len(head) > 2 &&
		slices.ContainsFunc(lines, func(line string) bool { return text.StringWidthWithoutEscSequences(line) > edge }) {
		last := len(head) - 1
		for _, row := range rows {
			tails = append(tails, row[last])
		}
		lines = aligned(head[:last], rows, edge)
	}
	for i, line := range lines {
		if i > 0 && tails != nil && tails[i-1] != none {
			line += "\n  " + text.Snip(tails[i-1], edge-2, "…")
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

const none = "-" // an empty cell

// cells are the titles and cells of a table, without the columns that are empty in every row.
func cells(v view) (head []string, rows [][]string) {
	rows = make([][]string, len(v.rows))
	for column, name := range v.columns {
		filled := len(v.rows) == 0 || column >= len(v.columns)-v.named
		for _, row := range v.rows {
			filled = filled || legible(row[column]) != none
		}
		if !filled {
			continue
		}
		title := header(name)
		if column >= len(v.columns)-v.named {
			title = clean(name)
		}
		head = append(head, title)
		for i, row := range v.rows {
			rows[i] = append(rows[i], legible(row[column]))
		}
	}
	return head, rows
}

// aligned are the lines of a table with the columns of head, cut at the edge of the screen unless it is 0.
func aligned(head []string, rows [][]string, edge int) []string {
	t := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.Options{}
	style.Box.PaddingLeft, style.Box.PaddingRight, style.Box.UnfinishedRow = "", "  ", "…"
	style.Format.Header = text.FormatDefault
	style.Size.WidthMax = edge
	t.SetStyle(style)
	t.AppendHeader(line(head))
	for _, row := range rows {
		t.AppendRow(line(row[:len(head)]))
	}
	lines := strings.Split(t.Render(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return lines
}

func line(cells []string) table.Row {
	row := make(table.Row, len(cells))
	for i, c := range cells {
		row[i] = c
	}
	return row
}

// width is how many columns the terminal has that w writes to.
func width(w io.Writer) (int, bool) {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	return columns, err == nil && columns > 0
}

// count is a number that may be more.
func count(c ops.Count) string {
	if c.More {
		return strconv.FormatInt(c.Count, 10) + "+"
	}
	return strconv.FormatInt(c.Count, 10)
}
