// Package httpserver is what the demo's programs have in common as servers of HTTP and JSON.
package httpserver

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// Serve answers requests and runs the program until ctx ends; then requests under way are answered, and run drains.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, run func(context.Context) error) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return run(ctx) })
	g.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		return server.Shutdown(drain)
	})
	return g.Wait()
}

// HostNames are the names that requests may be for: those of a list with commas, and the one to listen on.
func HostNames(addr, list string) []string {
	names := strings.Split(list, ",")
	if name, _, err := net.SplitHostPort(addr); err == nil {
		names = append(names, name)
	}
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// KnownHost refuses requests for a name that is not localhost, an IP address or one of names. A page whose name somebody
// has pointed at this machine is the same site for a browser, and could read everything.
func KnownHost(names []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := hostOf(r.Host)
		named := func(name string) bool { return strings.EqualFold(name, host) }
		if net.ParseIP(host) == nil && !named("localhost") && !slices.ContainsFunc(names, named) {
			Fail(w, http.StatusMisdirectedRequest,
				"this instance is not known by that name: call it localhost or by its IP address, or start it with --host NAME", "WRONG_HOST")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hostOf is the host of a Host header, without port and brackets.
func hostOf(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
}
