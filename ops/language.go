package ops

import "context"

type languageKey struct{}

// WithLanguage notes for [Section]s in which language, such as "zh", the one who asks reads.
func WithLanguage(ctx context.Context, lang string) context.Context {
	return context.WithValue(ctx, languageKey{}, lang)
}

// Language is the language of the one who asks: "en" unless [WithLanguage] says otherwise. The console
// takes it from the page, the command line and the JSON API leave it at English.
func Language(ctx context.Context) string {
	if lang, ok := ctx.Value(languageKey{}).(string); ok {
		return lang
	}
	return "en"
}
