package console

import (
	"fmt"
	"html/template"
	"strings"
)

// look is how a state is shown: colour and icon; the catalog has its text and what it means.
type look struct{ tone, icon string }

// looks are the states of everything, as "kind.STATE".
func looks() map[string]look {
	return map[string]look{
		"event.NEW": {"info", "dot"}, "event.SCHEDULED": {"idle", "clock"}, "event.DISPATCHING": {"info", "play"},
		"event.SENT": {"ok", "check"}, "event.FAILED": {"warn", "retry"}, "event.DEAD": {"bad", "cross"},

		"delivery.PENDING": {"info", "clock"}, "delivery.PROCESSING": {"info", "play"}, "delivery.SUCCESS": {"ok", "check"},
		"delivery.FAILED": {"warn", "retry"}, "delivery.DEAD": {"bad", "cross"}, "delivery.SKIPPED": {"idle", "skip"},
		"delivery.NONE": {"idle", "dot"},

		"consumer.running": {"ok", "check"}, "consumer.paused": {"warn", "pause"}, "consumer.circuit open": {"warn", "plug"},
		"consumer.unregistered": {"bad", "ghost"},

		"bulk.RUNNING": {"info", "play"}, "bulk.DONE": {"ok", "check"}, "bulk.CANCELED": {"idle", "skip"},
		"bulk.FAILED": {"bad", "cross"},

		"job.RUNNING": {"info", "play"}, "job.SUCCESS": {"ok", "check"}, "job.FAILED": {"bad", "cross"}, "job.NONE": {"idle", "clock"},
		"reservation.PREPARED": {"info", "clock"}, "reservation.CONFIRMED": {"ok", "check"}, "reservation.CANCELED": {"idle", "skip"},
		"instance.alive": {"ok", "check"}, "instance.draining": {"warn", "pause"}, "instance.gone": {"idle", "ghost"},
		"link.CONNECTED": {"ok", "check"}, "link.AWAY": {"warn", "plug"}, "link.REFUSES": {"bad", "cross"}, "link.UNKNOWN": {"idle", "help"},
		"link.GONE": {"idle", "ghost"}, "role.RELAY": {"idle", "send"}, "role.INBOX": {"idle", "inbox"},
		"doctor.OK": {"ok", "check"}, "doctor.WARN": {"warn", "alert"}, "doctor.FAIL": {"bad", "cross"},
	}
}

// badge is a state as colour, icon and text, which opens into what it means and what to do.
func (w words) badge(kind string, state any) template.HTML {
	name := fmt.Sprint(state)
	if name == "" {
		name = "NONE"
	}
	key := "badge." + kind + "." + name
	l, known := looks()[kind+"."+name]
	text, why := w.text[key], w.text[key+".why"]
	if !known {
		l, text, why = look{"idle", "help"}, name, w.text["badge.unknown.why"]
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<details class="why"><summary class="badge tone-%s" title="%s">%s%s</summary><div class="pop">%s</div></details>`,
		l.tone, template.HTMLEscapeString(why), icon(l.icon), template.HTMLEscapeString(text), template.HTMLEscapeString(why))
	return template.HTML(b.String()) //nolint:gosec // everything that came from outside is escaped
}

// stateText is a state in words.
func (w words) stateText(kind string, state any) string {
	name := fmt.Sprint(state)
	if name == "" {
		name = "NONE"
	}
	if text, ok := w.text["badge."+kind+"."+name]; ok {
		return text
	}
	return name
}

// tone is the colour of a level, of findings and of the doctor.
func tone(level any) string {
	switch strings.ToUpper(fmt.Sprint(level)) {
	case "OK":
		return "ok"
	case "INFO":
		return "info"
	case "WARN":
		return "warn"
	case "BAD", "FAIL":
		return "bad"
	}
	return "idle"
}

// icon is one of a few line drawings, for eyes only: the text beside it says the same.
func icon(name string) template.HTML {
	paths := map[string]string{
		"check": `<path d="M4.5 12.5 10 18 19.5 6.5"/>`, "cross": `<path d="M6 6l12 12M18 6 6 18"/>`,
		"retry": `<path d="M20 11a8 8 0 1 0-2.3 6M20 5v6h-6"/>`,
		"clock": `<circle cx="12" cy="12" r="8.5"/><path d="M12 7v5l3.5 2"/>`, "play": `<path d="M7 5v14l11-7z"/>`,
		"pause": `<path d="M8 5v14M16 5v14"/>`, "skip": `<path d="M5 6v12l8-6zM18 6v12"/>`,
		"dot": `<circle cx="12" cy="12" r="4"/>`, "alert": `<path d="M12 4 2.8 20h18.4zM12 10v4.5M12 17.4v.1"/>`,
		"plug":  `<path d="M9 3v5M15 3v5M6 8h12v3a6 6 0 0 1-12 0zM12 17v4"/>`,
		"ghost": `<path d="M5 20V11a7 7 0 0 1 14 0v9l-2.5-2-2.2 2-2.3-2-2.3 2-2.2-2zM9.5 11v.1M14.5 11v.1"/>`,
		"help":  `<circle cx="12" cy="12" r="8.5"/><path d="M9.7 9.6a2.4 2.4 0 1 1 3.3 2.3c-.7.3-1 .8-1 1.6M12 16.6v.1"/>`,
		"home":  `<path d="M4 11.5 12 4l8 7.5M6 10v9.5h12V10"/>`, "list": `<path d="M8 6h12M8 12h12M8 18h12M4 6h.01M4 12h.01M4 18h.01"/>`,
		"find":  `<circle cx="11" cy="11" r="6.5"/><path d="m20 20-4.3-4.3"/>`,
		"users": `<path d="M4 7h16M4 12h16M4 17h16"/><circle cx="9" cy="7" r="2"/><circle cx="15" cy="12" r="2"/><circle cx="8" cy="17" r="2"/>`,
		"server": `<rect x="4" y="4" width="16" height="7" rx="2"/><rect x="4" y="13" width="16" height="7" rx="2"/>` +
			`<path d="M8 7.5v.01M8 16.5v.01"/>`,
		"hourglass": `<path d="M7 3h10M7 21h10M8 3v4l4 5 4-5V3M8 21v-4l4-5 4 5v4"/>`,
		"inbox":     `<path d="M3.5 13 6 5h12l2.5 8v6h-17zM3.5 13H9l1.5 2.5h3L15 13h5.5"/>`,
		"stack":     `<path d="m12 3 9 5-9 5-9-5zM3.5 12.5 12 17l8.5-4.5M3.5 16.5 12 21l8.5-4.5"/>`,
		"book":      `<path d="M6 4h11a2 2 0 0 1 2 2v14H7a2 2 0 0 1-2-2V5a1 1 0 0 1 1-1zM9 8h6M9 12h6"/>`,
		"pulse":     `<path d="M3 12h4l2.5-7 5 14 2.5-7h4"/>`,
		"moon":      `<path d="M20 14.5A8.5 8.5 0 1 1 9.5 4a7 7 0 0 0 10.5 10.5z"/>`, "send": `<path d="M21 4 3 11l7 3 3 7z"/>`,
		"copy": `<rect x="9" y="9" width="11" height="11" rx="2"/><path d="M5 15V5a1 1 0 0 1 1-1h9"/>`,
		"link": `<path d="M14 5h5v5M19 5l-9 9M18 14v4a1 1 0 0 1-1 1H6a1 1 0 0 1-1-1V7a1 1 0 0 1 1-1h4"/>`,
		"eye":  `<path d="M2.5 12S6 5.5 12 5.5 21.5 12 21.5 12 18 18.5 12 18.5 2.5 12 2.5 12z"/><circle cx="12" cy="12" r="2.8"/>`,
	}
	drawn := `<svg class="i" viewBox="0 0 24 24" aria-hidden="true" focusable="false">` + paths[name] + `</svg>`
	return template.HTML(drawn) //nolint:gosec // constants
}
