package relay

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// ErrURL means that the URL of a broker is wrong, whatever the broker says.
var ErrURL = errors.New("wrong URL of a broker")

// ParseURL reads the URL of a broker. form is how one is written, such as "nats://host:port/STREAM": its scheme is the only one that
// is taken. An option after the ? that is not one of options, or is there twice, is an error. No error shows a password.
func ParseURL(raw, form string, options ...string) (*url.URL, error) {
	scheme, _, _ := strings.Cut(form, ":")
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: it cannot be read as a URL (special characters in a password are written as %%2F and so on): write %s",
			ErrURL, form)
	case u.Scheme != scheme:
		return nil, fmt.Errorf("%w: its scheme is %q: write %s", ErrURL, u.Scheme, form)
	case u.Host == "":
		return nil, fmt.Errorf("%w: it names no host: write %s", ErrURL, form)
	case u.Fragment != "":
		return nil, fmt.Errorf("%w: it has a part behind #: write %s", ErrURL, form)
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("%w: what is behind ? cannot be read: write %s", ErrURL, form)
	}
	for name, values := range query {
		switch {
		case !slices.Contains(options, name):
			return nil, fmt.Errorf("%w: it has the option %q, which is unknown: there are %s", ErrURL, name, strings.Join(options, ", "))
		case len(values) > 1:
			return nil, fmt.Errorf("%w: it has the option %q twice", ErrURL, name)
		}
	}
	return u, nil
}

// MayCreate is what the option create of a URL says: whether an adapter creates what is missing on the broker. Default: true.
func MayCreate(u *url.URL) (bool, error) {
	switch v := u.Query().Get("create"); v {
	case "", "true":
		return true, nil
	case "false":
		return false, nil
	default:
		return false, fmt.Errorf("%w: create=%s: it is true or false", ErrURL, v)
	}
}
