package console

import (
	"errors"
	"net/http"
	"slices"
)

// Permission is one thing that somebody may do.
type Permission string

// The permissions. Each change has its own, and so has looking at payloads.
const (
	View        Permission = "view"         // every page, without payloads
	PayloadView Permission = "payload:view" // reveal a payload; each time is audited
	Retry       Permission = "event:retry"
	Skip        Permission = "event:skip"
	Discard     Permission = "event:discard"
	Replay      Permission = "event:replay"
	Publish     Permission = "event:publish"
	Pause       Permission = "consumer:pause" // and resume
	Retire      Permission = "consumer:retire"
	RunJob      Permission = "job:run"
	Bulk        Permission = "bulk" // together with the permission for what the operation does
)

// ReadOnly may look at everything but payloads.
func ReadOnly() []Permission { return []Permission{View} }

// Operator may also do what is safe to repeat: retry, pause, resume, run a job.
func Operator() []Permission { return append(ReadOnly(), Retry, Pause, RunJob) }

// Admin may also do what cannot be undone, and what concerns many events. Payloads are not part of
// it: append [PayloadView] for those who need them.
func Admin() []Permission {
	return append(Operator(), Skip, Discard, Replay, Publish, Retire, Bulk)
}

// Principal is who sent a request, and what they may do.
type Principal struct {
	// Name goes into the audit log, at most 128 bytes.
	Name string
	May  []Permission
	// Tenants are the ones whose events, deliveries and bulk operations the principal sees and may change; 0 stands for
	// events without a tenant. Empty means all of them, and what concerns the whole deployment: jobs, consumers, the doctor.
	Tenants []int64
}

// Can reports whether the principal has the permission.
func (p Principal) Can(perm Permission) bool { return p.Name != "" && slices.Contains(p.May, perm) }

// Authorizer tells who sent the request. An error, or a principal without a name, is nobody:
// the answer is 404, as if there were no console, or 401 if the error is a [ChallengeError].
type Authorizer func(*http.Request) (Principal, error)

// ErrNobody is the answer of an [Authorizer] that does not know the sender.
var ErrNobody = errors.New("console: the request has no valid credentials")
