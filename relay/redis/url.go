package redis

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/bluecone-go/bluecone/relay"
)

const (
	form          = "redis://user:password@host:port/0?stream=bluecone"
	defaultPort   = "6379"
	defaultStream = "bluecone"
	longestName   = 200 // bytes of a stream's name, as relay.Received has it
)

// target is what a URL names.
type target struct {
	options   goredis.Options
	stream    string
	mayCreate bool
	replicas  int // how many of them have to have a message before it is confirmed
}

func parse(raw string) (target, error) {
	u, err := relay.ParseURL(raw, form, "stream", "create", "wait")
	if err != nil {
		return target{}, err
	}
	var t target
	if t.mayCreate, err = relay.MayCreate(u); err != nil {
		return t, err
	}
	if t.stream, err = streamName(u.Query()); err != nil {
		return t, err
	}
	if v := u.Query().Get("wait"); v != "" {
		if t.replicas, err = strconv.Atoi(v); err != nil || t.replicas < 0 {
			return t, fmt.Errorf("%w: wait=%s: it is a number of replicas", relay.ErrURL, v)
		}
	}
	database := 0
	if path := strings.Trim(u.Path, "/"); path != "" {
		if database, err = strconv.Atoi(path); err != nil || database < 0 {
			return t, fmt.Errorf("%w: the path %q is not the number of a database: write %s", relay.ErrURL, u.Path, form)
		}
	}
	port := u.Port()
	if port == "" {
		port = defaultPort
	}
	password, _ := u.User.Password()
	t.options = goredis.Options{
		Addr: net.JoinHostPort(u.Hostname(), port), Username: u.User.Username(), Password: password, DB: database,
	}
	return t, nil
}

func streamName(options url.Values) (string, error) {
	name := options.Get("stream")
	switch {
	case !options.Has("stream"):
		return defaultStream, nil
	case name == "" || len(name) > longestName:
		return "", fmt.Errorf("%w: stream: its name must have 1 to %d bytes, not %d", relay.ErrURL, longestName, len(name))
	default:
		return name, nil
	}
}
