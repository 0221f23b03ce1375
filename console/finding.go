package console

import (
	"encoding/json"
	"regexp"
	"time"

	"github.com/bluecone-go/bluecone/doctor"
	"github.com/bluecone-go/bluecone/ops"
)

// sentence is a finding or a moment in another language, with the names of its values in braces.
type sentence struct{ Says, Remedy string }

// loadSentences reads the translations of findings and moments: for each rule or kind the forms that its sentence takes, of which
// the first whose values are all there is used. Packages ops and doctor speak English themselves.
func loadSentences(lang string) map[string][]sentence {
	content, err := catalogFiles.ReadFile("catalog/findings." + lang + ".json")
	if err != nil {
		return nil // the language of those packages
	}
	var s map[string][]sentence
	if err := json.Unmarshal(content, &s); err != nil {
		panic("console: sentences " + lang + ": " + err.Error())
	}
	return s
}

var (
	inBraces   = regexp.MustCompile(`\{(\w+)\}`)
	someTrials = regexp.MustCompile(`^(\d+) attempts?$`)
	orMore     = regexp.MustCompile(`^(\d+) or more$`)
)

// says is a finding in the reader's language.
func (w words) says(f ops.Finding) string {
	if s, ok := w.sentenceOf(f.Rule, f.Args); ok {
		return w.fill(s.Says, f.Args)
	}
	return f.Says
}

// tells is what happened at a moment, in the reader's language.
func (w words) tells(m ops.Moment) string {
	if s, ok := w.sentenceOf("moment."+m.Kind, m.Args); ok {
		return w.fill(s.Says, m.Args)
	}
	return m.Says
}

// examined is what a check of the doctor says, in the reader's language. A version is the same in all.
func (w words) examined(f doctor.Finding) string {
	key := "doctor.fine." + f.Check
	if f.Level == doctor.OK && f.Says == w.console.texts[languages()[0]][key] {
		return w.text[key]
	}
	if s, ok := w.sentenceOf("doctor."+f.Rule, f.Args); ok {
		return w.fill(s.Says, f.Args)
	}
	return f.Says
}

// prescribed is what to do about what a check of the doctor says.
func (w words) prescribed(f doctor.Finding) string {
	if s, ok := w.sentenceOf("doctor."+f.Rule, f.Args); ok {
		return w.fill(s.Remedy, f.Args)
	}
	return f.Remedy
}

// remedy is what to do about a finding.
func (w words) remedy(f ops.Finding) string {
	if s, ok := w.sentenceOf(f.Rule, f.Args); ok && f.Remedy != "" {
		quoted := make(map[string]string, len(f.Args))
		for name, value := range f.Args {
			quoted[name] = ops.Shell(value) // for those who paste the commands in it
		}
		return w.fill(s.Remedy, quoted)
	}
	return f.Remedy
}

func (w words) sentenceOf(name string, args map[string]string) (sentence, bool) {
forms:
	for _, s := range w.sentences[name] {
		for _, name := range inBraces.FindAllStringSubmatch(s.Says, -1) {
			if args[name[1]] == "" {
				continue forms
			}
		}
		return s, true
	}
	return sentence{}, false
}

func (w words) fill(format string, args map[string]string) string {
	return inBraces.ReplaceAllStringFunc(format, func(name string) string {
		value := args[name[1:len(name)-1]]
		if at, err := time.Parse(time.RFC3339, value); err == nil {
			return at.UTC().Format("2006-01-02 15:04:05 UTC")
		}
		if n := someTrials.FindStringSubmatch(value); n != nil {
			return w.text.text("attempts.n", "n", n[1])
		}
		if n := orMore.FindStringSubmatch(value); n != nil {
			return w.text.text("count.more", "n", n[1])
		}
		return value
	})
}
