package dialect

import "strings"

// Reach is how far the effect of a statement goes.
type Reach int

// The reaches of statements.
const (
	// OfTransaction ends with its transaction.
	OfTransaction Reach = iota
	// OfSession may outlive the transaction: a variable, a temporary table.
	OfSession
	// CommitsByItself ends the transaction that it is run in, with everything that was written before.
	CommitsByItself
)

// reaches are the first words of statements whose effect does not end with their transaction. A second word, if there
// is one, takes precedence.
var reaches = map[string]map[string]Reach{ //nolint:gochecknoglobals // a constant table
	"mysql": {
		"alter": CommitsByItself, "analyze": CommitsByItself, "analyze delete": OfTransaction, "analyze format": OfTransaction,
		"analyze insert": OfTransaction, "analyze replace": OfTransaction, "analyze select": OfTransaction, "analyze update": OfTransaction,
		"analyze with": OfTransaction, "begin": CommitsByItself, "cache": CommitsByItself, "change": CommitsByItself,
		"check": CommitsByItself, "create": CommitsByItself, "create temporary": OfSession, "drop": CommitsByItself,
		"drop temporary": OfSession, "flush": CommitsByItself, "grant": CommitsByItself, "install": CommitsByItself,
		"load index": CommitsByItself,
		"lock":       CommitsByItself,
		"optimize":   CommitsByItself, "rename": CommitsByItself, "repair": CommitsByItself, "reset": CommitsByItself, "revoke": CommitsByItself,
		"set password": CommitsByItself, "start": CommitsByItself, "truncate": CommitsByItself, "uninstall": CommitsByItself,
		"unlock": CommitsByItself, "call": OfSession, "deallocate": OfSession, "execute": OfSession, "handler": OfSession, "prepare": OfSession,
		"set": OfSession, "use": OfSession,
	},
	"postgres": {
		"call": OfSession, "create global": OfSession, "create local": OfSession, "create temp": OfSession, "create temporary": OfSession,
		"deallocate": OfSession, "discard": OfSession, "do": OfSession, "execute": OfSession, "listen": OfSession,
		"load": OfSession, "prepare": OfSession, "reset": OfSession,
		"set": OfSession, "set constraints": OfTransaction, "set local": OfTransaction, "set transaction": OfTransaction, "unlisten": OfSession,
	},
	"sqlite": {
		"attach": OfSession, "create temp": OfSession, "create temporary": OfSession, "detach": OfSession, "pragma": OfSession,
	},
}

// ReachOf tells how far the effect of a statement goes, by its first words.
func (d Dialect) ReachOf(query string) Reach {
	first, rest := verb(query)
	known := reaches[d.Name]
	reach, listed := known[first]
	if !listed && first != "create" && first != "load" {
		return OfTransaction
	}
	second, after := word(rest)
	if first == "create" && second == "or" {
		_, after = word(after) // replace
		second, _ = word(after)
	}
	if d.Name == "mysql" && first == "set" && strings.Contains(strings.ToLower(rest), "autocommit") {
		return CommitsByItself // to turn it on does
	}
	if r, ok := known[first+" "+second]; ok {
		return r
	}
	return reach
}

// Ends reports whether a statement is there to end its transaction, or to begin another one.
func Ends(query string) bool {
	first, rest := verb(query)
	second, rest := word(rest)
	switch first {
	case "abort", "begin", "commit", "end", "start", "xa":
		return true
	case "prepare":
		return second == "transaction"
	case "rollback":
		if second == "work" || second == "transaction" {
			second, _ = word(rest)
		}
		return second != "to"
	}
	return false
}

// MayEnd reports whether a statement may do what [Ends] says although its first word does not tell: a procedure, or one text of
// several statements.
func MayEnd(query string) bool {
	first, _ := verb(query)
	_, after, _ := strings.Cut(query, ";")
	return first == "call" || first == "execute" || strings.TrimSpace(after) != ""
}

// Verb is the first word of a statement in capitals, for errors.
func Verb(query string) string {
	first, _ := verb(query)
	return strings.ToUpper(first[:min(len(first), 16)])
}

// verb is the first word of a statement and what follows it. MariaDB's SET STATEMENT … FOR is before one.
func verb(query string) (first, rest string) {
	first, rest = word(query)
	if first != "set" {
		return first, rest
	}
	if second, after := word(rest); second == "statement" {
		if query = afterFor(after); query != "" {
			return verb(query)
		}
	}
	return first, rest
}

// afterFor is what follows the first FOR that is in no quotes.
func afterFor(text string) string {
	quote := byte(0)
	for i := range len(text) {
		switch c := text[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case (c == 'f' || c == 'F') && i > 0 && strings.IndexByte(" \t\r\n'\"", text[i-1]) >= 0:
			if w, rest := word(text[i:]); w == "for" {
				return rest
			}
		}
	}
	return ""
}

// word is the first word of a text in lower case, and what follows it. It passes over comments.
func word(text string) (first, rest string) {
	for {
		text = strings.TrimLeft(text, " \t\r\n;(")
		end := ""
		switch {
		case strings.HasPrefix(text, "/*!"), strings.HasPrefix(text, "/*M!"): // MySQL and MariaDB run what is inside
			_, text, _ = strings.Cut(text, "!")
			text = strings.TrimLeft(text, "0123456789M")
			continue
		case strings.HasPrefix(text, "*/"): // its end
			text = text[2:]
			continue
		case strings.HasPrefix(text, "/*"):
			end = "*/"
		case strings.HasPrefix(text, "--"), strings.HasPrefix(text, "#"):
			end = "\n"
		default:
			n := 0
			for n < len(text) && (text[n]|0x20 >= 'a' && text[n]|0x20 <= 'z' || text[n] == '_') {
				n++
			}
			return strings.ToLower(text[:n]), text[n:]
		}
		_, after, found := strings.Cut(text, end)
		if !found {
			return "", ""
		}
		text = after
	}
}
