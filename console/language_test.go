package console

import (
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/doctor"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// Every sentence exists in every language, with the same values in it.
func TestCatalogsAreEqual(t *testing.T) {
	t.Parallel()
	all := loadCatalogs()
	braces := regexp.MustCompile(`\{\w+\}`)
	names := func(s string) []string {
		found := braces.FindAllString(s, -1)
		slices.Sort(found)
		return slices.Compact(found)
	}
	for lang, c := range all {
		for key, s := range all["en"] {
			require.NotEmpty(t, c[key], "%s has no %s", lang, key)
			require.Equal(t, names(s), names(c[key]), "%s: %s", lang, key)
		}
		require.Len(t, c, len(all["en"]), lang)
	}
}

// Every sentence that a template or a state asks for exists.
func TestEverySentenceExists(t *testing.T) {
	t.Parallel()
	en := loadCatalogs()["en"]
	plain := regexp.MustCompile(`\bt "([^"]+)"`)
	require.NoError(t, fs.WalkDir(templateFiles, "templates", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(templateFiles, path)
		for _, m := range plain.FindAllStringSubmatch(string(text), -1) {
			require.Contains(t, en, m[1], path)
		}
		for _, m := range regexp.MustCompile(`template "empty" "(\w+)"`).FindAllStringSubmatch(string(text), -1) {
			require.Contains(t, en, "empty."+m[1], path)
			require.Contains(t, en, "empty."+m[1]+".why", path)
		}
		return err
	}))
	for state := range looks() {
		require.Contains(t, en, "badge."+state)
		require.Contains(t, en, "badge."+state+".why")
	}
	c := consoleOf(&fake{text: "x", count: 1}, everything())
	for _, p := range c.pages() {
		require.Contains(t, en, "page."+p.name)
	}
	for _, a := range c.actions() {
		if a.do != nil {
			require.Contains(t, en, "done."+a.name)
		}
	}
	for _, page := range allPages() { // a missing sentence shows its key
		for _, lang := range languages() {
			body := get(c, "/"+strings.Replace(page+"&lang="+lang, "&", map[bool]string{true: "&", false: "?"}[strings.Contains(page, "?")],
				1)).Body.String()
			require.NotRegexp(t, `>(?:page|col|badge|empty|act|bulk|event|time|overview)\.[a-z.]+<`, body, page)
		}
	}
}

func TestLanguageOfTheAnswer(t *testing.T) {
	t.Parallel()
	c := consoleOf(&fake{text: "x"}, everything())
	for _, test := range []struct{ target, accept, want string }{
		{"/", "", "Overview"},
		{"/", "zh-CN,zh;q=0.9,en;q=0.8", "概览"},
		{"/?lang=en", "zh-CN", "Overview"},
		{"/?lang=zh", "en", "概览"},
		{"/?lang=xx", "fr, zh;q=0.5", "概览"},
		{"/", "fr", "Overview"},
	} {
		w := get(c, test.target, "Accept-Language", test.accept)
		require.Equal(t, http.StatusOK, w.Code)
		require.Contains(t, w.Body.String(), "<h1>"+test.want+"</h1>", "%+v", test)
	}
	require.Contains(t, get(c, "/?lang=zh").Body.String(), `href="events?lang=zh"`)
	require.NotContains(t, get(c, "/", "Accept-Language", "zh").Body.String(), `href="events?lang=zh"`)
}

// What the host's modules know is told in the language of the page; programs read English.
func TestSectionsAreAskedInTheReadersLanguage(t *testing.T) {
	t.Parallel()
	c := consoleOf(&fake{text: "x"}, everything())
	for target, want := range map[string]string{
		"/forensics?key=7&lang=zh": "x in zh", "/forensics?key=7": "x in en",
		"/api/v1/forensics?key=7&lang=zh": "x in en",
	} {
		require.Contains(t, get(c, target).Body.String(), want, target)
	}
}

// Every rule of packages ops and doctor has its sentences in every other language.
func TestEveryFindingIsTranslated(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../ops/*.go")
	require.NoError(t, err)
	var rules []string
	for _, file := range files {
		code, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?m)^\s+Rule\w+\s*= "(\w+)"`).FindAllStringSubmatch(string(code), -1) {
			rules = append(rules, m[1])
		}
	}
	require.Greater(t, len(rules), 15)
	story, err := os.ReadFile("../ops/story.go")
	require.NoError(t, err)
	kinds := regexp.MustCompile(`(?m)^\s+Moment\w+\s*= "(\w+)"`).FindAllStringSubmatch(string(story), -1)
	require.Greater(t, len(kinds), 10)
	for _, kind := range kinds {
		rules = append(rules, "moment."+kind[1])
	}
	for rule := range rulesOfTheDoctor(t) {
		rules = append(rules, "doctor."+rule)
	}
	for _, lang := range languages()[1:] {
		sentences := loadSentences(lang)
		for _, rule := range rules {
			require.NotEmpty(t, sentences[rule], "%s: %s", lang, rule)
		}
		require.Len(t, sentences, len(rules), lang)
	}
}

func TestAFindingTakesTheFormThatItsValuesAllow(t *testing.T) {
	t.Parallel()
	w := words{text: loadCatalogs()["zh"], sentences: loadSentences("zh")}
	one := ops.Finding{
		Rule: "dead", Says: "s", Remedy: "r", Args: map[string]string{
			"n": "10 attempts", "consumer": "Points", "at": "2026-11-21T10:00:00Z",
			"aggregate": "ORDER 7", "type": "order.paid", "error": "no", "event": "e1",
		},
	}
	require.Equal(t, "Points 在 2026-11-21 10:00:00 UTC 经 10 次尝试后放弃了 ORDER 7 的 order.paid：no。", w.says(one))
	require.Contains(t, w.remedy(one), "e1")
	many := ops.Finding{Rule: "dead", Args: map[string]string{"n": "12"}}
	require.Equal(t, "有 12 个死信等待处理。", w.says(many))
	require.Equal(t, "as it is", w.says(ops.Finding{Rule: "of a newer release", Says: "as it is"}))
	capped := doctor.Finding{Level: doctor.Warn, Rule: "dead", Args: map[string]string{"n": "1000 or more"}}
	require.Equal(t, "至少 1000 个事件是死信（DEAD）", w.examined(capped))
	newer := doctor.Finding{Level: doctor.Warn, Rule: "of a newer release", Says: "as it is", Remedy: "do it"}
	require.Equal(t, "as it is", w.examined(newer))
	require.Equal(t, "do it", w.prescribed(newer))
}

// What happened is told in the reader's language; what a module of the host says stays as it is.
func TestMomentsAreToldInTheReadersLanguage(t *testing.T) {
	t.Parallel()
	w := words{text: loadCatalogs()["zh"], sentences: loadSentences("zh")}
	args := func(more ...string) map[string]string {
		m := map[string]string{"type": "order.paid", "consumer": "Points"}
		for i := 0; i < len(more); i += 2 {
			m[more[i]] = more[i+1]
		}
		return m
	}
	for _, c := range []struct {
		kind string
		args map[string]string
		want string
	}{
		{ops.MomentSaved, args("source", ""), "order.paid 已保存"},
		{ops.MomentSaved, args("source", "import"), "import 保存了 order.paid"},
		{
			ops.MomentClaimed,
			map[string]string{"type": "order.paid", "instance": "a", "until": "2026-11-21T10:00:00Z"},
			"order.paid 由 a 认领，租约至 2026-11-21 10:00:00 UTC",
		},
		{ops.MomentDone, args("result", "7"), "Points 已处理 order.paid（结果 7）"},
		{ops.MomentDead, args("attempt", "3", "took", "2s", "error", "no"), "Points 第 3 次处理 order.paid 失败，用时 2s，不再重试：no"},
		{ops.MomentDead, args("error", "no"), "Points 放弃了 order.paid：no"},
		{ops.MomentOperator, map[string]string{"actor": "anna", "action": "retry", "details": "", "reason": "back"}, "anna：retry（back）"},
		{ops.MomentSaved, nil, "as the module says"},
		{"host", args(), "as the module says"},
	} {
		require.Equal(t, c.want, w.tells(ops.Moment{Kind: c.kind, Args: c.args, Says: "as the module says"}), "%s %v", c.kind, c.args)
	}
}

// Every check of the doctor has its name and its good news in both languages: in English, its own words.
func TestEveryCheckOfTheDoctorIsTranslated(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../doctor/*.go")
	require.NoError(t, err)
	texts := loadCatalogs()
	checks := 0
	for _, file := range files {
		code, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`\{name: "([^"]+)",(?: dialects: "[^"]*",)? fine: "([^"]+)"`).FindAllStringSubmatch(string(code),
			-1) {
			require.Equal(t, m[2], texts["en"]["doctor.fine."+m[1]])
			require.NotEmpty(t, texts["zh"]["doctor.fine."+m[1]], m[1])
			require.NotEmpty(t, texts["zh"]["doctor.name."+m[1]], m[1])
			checks++
		}
	}
	require.Greater(t, checks, 20)
}

// rulesOfTheDoctor are the sentences of package doctor that are not good news, by their rules, read from its code.
func rulesOfTheDoctor(t *testing.T) map[string]sentence {
	t.Helper()
	files, err := filepath.Glob("../doctor/*.go")
	require.NoError(t, err)
	var code []byte
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		code = append(code, content...)
	}
	code = regexp.MustCompile(`"\s*\+\s*"`).ReplaceAll(code, nil) // a sentence may stand on several lines
	code = regexp.MustCompile(`,\s+`).ReplaceAll(code, []byte(", "))
	constants := make(map[string]string)
	for _, m := range regexp.MustCompile(`(\w+Remedy) *= "([^"]+)"`).FindAllStringSubmatch(string(code), -1) {
		constants[m[1]] = m[2]
	}
	rules := make(map[string]sentence)
	for _, m := range regexp.MustCompile(`\b(?:warn|fail)\("(\w+)", "([^"]+)", (?:"([^"]+)"|(\w+)),`).FindAllStringSubmatch(string(code), -1) {
		rules[m[1]] = sentence{m[2], m[3] + constants[m[4]]}
	}
	calls := len(regexp.MustCompile(`\b(?:warn|fail)\(`).FindAll(code, -1)) - len([]string{"func warn(", "func fail("})
	require.Len(t, rules, calls, "each call has a rule of its own, and sentences that can be read")
	return rules
}

// A translation has the values of the doctor's own sentence: all of them, and no others.
func TestTranslationsOfTheDoctorKeepItsValues(t *testing.T) {
	t.Parallel()
	names := func(s string) []string {
		found := inBraces.FindAllString(s, -1)
		slices.Sort(found)
		return found
	}
	for _, lang := range languages()[1:] {
		sentences := loadSentences(lang)
		for rule, own := range rulesOfTheDoctor(t) {
			for _, s := range sentences["doctor."+rule] {
				require.Equal(t, names(own.Says), names(s.Says), "%s: %s", lang, rule)
				require.Equal(t, names(own.Remedy), names(s.Remedy), "%s: %s", lang, rule)
				require.NotEmpty(t, s.Remedy, "%s: %s", lang, rule)
			}
		}
	}
}

// The page of the doctor has no English sentence on it for a Chinese reader, whatever is wrong.
func TestTheDoctorSpeaksTheReadersLanguage(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	db.SetMaxOpenConns(1)                                           // the setting stays
	_, err := db.ExecContext(t.Context(), "PRAGMA synchronous = 1") // a WARN
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), "DELETE FROM bc_schema_version")
	require.NoError(t, err)
	ob, err := outbox.New(db, outbox.Config{Logger: quiet()})
	require.NoError(t, err)
	o, err := ops.New(db, ob, ops.Config{Logger: quiet()})
	require.NoError(t, err)
	c, err := New(o, Config{Authorize: Anyone(everything()), Logger: quiet()})
	require.NoError(t, err)
	body := get(c, "/doctor?lang=zh").Body.String()
	require.Contains(t, body, "<td>synchronous 为 1：断电前最后的提交可能丢失<span")
	require.Contains(t, body, "<td>尚未执行：0001_bluecone")
	cells := regexp.MustCompile(`<td>([^<]+)(?:<span class="sub">([^<]+)</span>)?</td>`).FindAllStringSubmatch(body, -1)
	require.Len(t, cells, strings.Count(body, `<th scope="row">`))
	for _, cell := range cells {
		for _, s := range cell[1:] {
			require.Regexp(t, `\p{Han}|^[\d.]*$`, s, "a version at most is not Chinese")
		}
	}
	body = get(c, "/doctor?lang=en").Body.String()
	require.Contains(t, body, "<td>synchronous is 1: the last commits before a power failure may be lost<span")
	require.Contains(t, body, "call migrations.Up, or apply the files of migrations/ by hand</span>")
}
