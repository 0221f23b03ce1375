// Package instance names a process among all processes that share a database.
package instance

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"strings"
)

var unsafe = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

// Name is host name, process id and a random part: unique without any configuration,
// and readable in a table of leases. At most 64 characters of [A-Za-z0-9_.-].
func Name() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "host"
	}
	host = unsafe.ReplaceAllString(host, "-")
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	return fmt.Sprintf("%s-%d-%s", host[:min(len(host), 40)], os.Getpid(), hex.EncodeToString(random[:]))
}

// Run names one run of the process that has this name, in at most 64 bytes: a process that is restarted under its name
// must not take what its predecessor has leased for its own.
func Run(name string) string {
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	suffix := "#" + hex.EncodeToString(random[:])
	return strings.ToValidUTF8(name[:min(len(name), 64-len(suffix))], "") + suffix
}
