package alert

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/internal/text"
)

// format is how one kind of receiver wants to be called.
type format struct {
	body    func(n Notice, secret string, now time.Time) any
	query   func(q url.Values, secret string, now time.Time) // adds the signature, if it belongs there
	refused func(answer []byte) string                       // why a message was not taken although the status is 200
}

func formats() map[Format]format {
	return map[Format]format{
		JSON:     {body: func(n Notice, _ string, _ time.Time) any { return n }},
		DingTalk: {body: dingTalk, query: signDingTalk, refused: code("errcode", "errmsg")},
		WeCom:    {body: weCom, refused: code("errcode", "errmsg")},
		Feishu:   {body: feishu, refused: code("code", "msg")},
		Slack:    {body: slack},
	}
}

// code reads an answer that says 0 in a field if all is well.
func code(field, reason string) func([]byte) string {
	return func(answer []byte) string {
		var fields map[string]any
		if err := json.Unmarshal(answer, &fields); err != nil {
			return "its answer is not JSON"
		}
		if n, ok := fields[field].(float64); !ok || n != 0 {
			return text.Clean(fmt.Sprintf("%s %v, %v", field, fields[field], fields[reason]), 300)
		}
		return ""
	}
}

// title is a message in a line.
func (n Notice) title() string {
	head := map[Kind]string{
		Firing: string(n.Level), Escalated: string(n.Level) + ", escalated", Reminder: string(n.Level) + ", still",
		Resolved: "RESOLVED",
	}[n.Kind]
	where := strings.Trim(n.Environment+" "+n.Service, " ")
	if where != "" {
		where = " " + where
	}
	return text.Clean("["+head+"]"+where+": "+n.Rule+" "+n.Subject, 150)
}

// field is a line of a message.
type field struct{ name, value string }

// fields are the lines of a message, without its links.
func (n Notice) fields() []field {
	out := []field{
		{"What", n.Says},
		{"Since", n.Since.UTC().Format("2006-01-02 15:04:05 UTC")},
		{"How many", strconv.FormatInt(min(n.Count, countCap), 10)},
	}
	if n.Count > countCap {
		out[2].value = "more than " + out[2].value
	}
	if n.Kind != Resolved {
		out = append(out, field{"What to do", n.Remedy})
	}
	if n.Runbook != "" && !linked(n.Runbook) {
		out = append(out, field{"Runbook", n.Runbook})
	}
	return out
}

// linked reports whether an address can be followed from a message.
func linked(address string) bool {
	u, err := url.Parse(address)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https")
}

// links are the addresses of a message: the page that shows the matter, and the runbook.
func (n Notice) links() []field {
	var out []field
	for _, l := range []field{{"Open", n.Link}, {"Runbook", n.Runbook}} {
		if linked(l.value) {
			out = append(out, l)
		}
	}
	return out
}

// flat makes text harmless in a dialect of Markdown for which no escaping is defined: the letters that
// begin markup become their full-width twins.
func flat(s string) string {
	return strings.NewReplacer("<", "＜", ">", "＞", "[", "［", "]", "］", "(", "（", ")", "）", "*", "＊", "_", "＿", "`", "｀", "#", "＃",
		"!", "！", "|", "｜", "~", "～", "@", "＠", "\\", "＼", "\n", " ", "\r", " ").Replace(s)
}

// markdown is a message for robots that read Markdown.
func (n Notice) markdown(link func(name, address string) string) string {
	var b strings.Builder
	b.WriteString("### " + flat(n.title()) + "\n\n")
	for _, f := range n.fields() {
		b.WriteString("**" + f.name + "**: " + flat(f.value) + "\n\n")
	}
	for _, l := range n.links() {
		b.WriteString(link(l.name, l.value) + "\n\n")
	}
	return b.String()
}

// address makes a URL safe between the brackets of Markdown.
func address(u string) string {
	return strings.NewReplacer("(", "%28", ")", "%29", "<", "%3C", ">", "%3E", " ", "%20").Replace(u)
}

func dingTalk(n Notice, _ string, _ time.Time) any {
	say := n.markdown(func(name, u string) string { return "[" + name + "](" + address(u) + ")" })
	return map[string]any{
		"msgtype": "markdown", "markdown": map[string]any{"title": flat(n.title()), "text": say}, "at": map[string]any{"isAtAll": false},
	}
}

// signDingTalk signs as the "additional signature" of a robot wants it.
func signDingTalk(q url.Values, secret string, now time.Time) {
	stamp := strconv.FormatInt(now.UnixMilli(), 10)
	q.Set("timestamp", stamp)
	q.Set("sign", signed(secret, stamp+"\n"+secret))
}

// weCom takes at most 4096 bytes.
func weCom(n Notice, _ string, _ time.Time) any {
	n.Says, n.Subject, n.Remedy = text.Clean(n.Says, 300), text.Clean(n.Subject, 100), text.Clean(n.Remedy, 300)
	say := n.markdown(func(name, u string) string { return "[" + name + "](" + address(u) + ")" })
	return map[string]any{"msgtype": "markdown", "markdown": map[string]any{"content": say}}
}

// feishu is a card of plain text, in which nothing is markup.
func feishu(n Notice, secret string, now time.Time) any {
	plain := func(s string) map[string]any { return map[string]any{"tag": "plain_text", "content": s} }
	var elements, buttons []any
	for _, f := range n.fields() {
		elements = append(elements, map[string]any{"tag": "div", "text": plain(f.name + ": " + f.value)})
	}
	for _, l := range n.links() {
		buttons = append(buttons, map[string]any{"tag": "button", "type": "default", "text": plain(l.name), "url": l.value})
	}
	if len(buttons) > 0 {
		elements = append(elements, map[string]any{"tag": "action", "actions": buttons})
	}
	colour := map[bool]string{true: "red", false: "orange"}[n.Level == Critical]
	if n.Kind == Resolved {
		colour = "green"
	}
	body := map[string]any{"msg_type": "interactive", "card": map[string]any{
		"config": map[string]any{"wide_screen_mode": true},
		"header": map[string]any{"title": plain(n.title()), "template": colour}, "elements": elements,
	}}
	if secret != "" {
		stamp := strconv.FormatInt(now.Unix(), 10)
		body["timestamp"], body["sign"] = stamp, signed(stamp+"\n"+secret, "")
	}
	return body
}

// slack is blocks of plain text; only the links are in Slack's markup.
func slack(n Notice, _ string, _ time.Time) any {
	plain := func(s string) map[string]any { return map[string]any{"type": "plain_text", "text": s} }
	blocks := []any{map[string]any{"type": "header", "text": plain(n.title())}}
	for _, f := range n.fields() {
		blocks = append(blocks, map[string]any{"type": "section", "text": plain(f.name + ": " + text.Clean(f.value, 2000))})
	}
	escape := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "|", "%7C")
	var links []string
	for _, l := range n.links() {
		links = append(links, "<"+escape.Replace(l.value)+"|"+l.name+">")
	}
	if len(links) > 0 {
		blocks = append(blocks, map[string]any{"type": "section", "text": map[string]any{"type": "mrkdwn", "text": strings.Join(links, "  ")}})
	}
	fallback := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(n.title() + ": " + n.Says)
	return map[string]any{"text": fallback, "blocks": blocks}
}
