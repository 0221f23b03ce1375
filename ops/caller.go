package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/bluecone-go/bluecone/internal/kind"
	"github.com/bluecone-go/bluecone/internal/store/view"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Caller is on whose behalf something is asked or done.
type Caller struct {
	// Name tells callers apart when they wait for their turn to read: one of them does not delay the others.
	Name string
	// Tenants are the ones whose events, deliveries and bulk operations the caller may see and change; 0 stands for events
	// without a tenant. Empty means all of them, and what concerns the whole deployment.
	Tenants []int64
}

type callerKey struct{}

// WithCaller says on whose behalf the functions of an [Ops] are called with the context. Without it they are called for
// somebody who may see all tenants.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the caller, for sections and checks of the host.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// ErrForbidden means that the caller is limited to some tenants, and asks for what concerns others, or everybody.
var ErrForbidden = errors.New("this is not for a caller who is limited to some tenants")

// Sees tells whether the caller may see what belongs to a tenant, 0 for none.
func (c Caller) Sees(tenant int64) bool {
	return !c.limited() || slices.Contains(c.Tenants, tenant)
}

func (c Caller) limited() bool { return len(c.Tenants) > 0 }

// whole refuses what concerns the whole deployment to callers who are limited.
func (c Caller) whole(what string) error {
	if c.limited() {
		return fmt.Errorf("ops: %s concerns the whole deployment: %w", what, ErrForbidden)
	}
	return nil
}

// mayChange makes sure that an event is one that the caller may see.
func (a *access) mayChange(ctx context.Context, eventID string) error {
	c := CallerOf(ctx)
	if !c.limited() {
		return nil
	}
	tenant, found, err := a.tenantOf(ctx, eventID)
	switch {
	case err != nil:
		return err
	case !found:
		return noEvent(eventID)
	case !c.Sees(tenant):
		return kind.Of(noEvent(eventID), ErrOtherTenant)
	}
	return nil
}

// exists tells whether anything is left of an event.
func (a *access) exists(ctx context.Context, eventID string) (bool, error) {
	_, found, err := a.tenantOf(ctx, eventID)
	return found, err
}

// tenantOf looks for the tenant of an event wherever something may be left of it.
func (a *access) tenantOf(ctx context.Context, eventID string) (tenant int64, found bool, err error) {
	for _, in := range []view.Table{view.Events, view.EventsArchive, view.Deliveries} {
		if tenant, found, err = view.TenantOf(ctx, a.sql, in, eventID); err != nil {
			return 0, false, fmt.Errorf("ops: look for the tenant of an event: %w", err)
		}
		if found {
			return tenant, true, nil
		}
	}
	return 0, false, nil
}

// noEvent says the same to a caller who is limited to some tenants, whether there is no such event or it is another tenant's.
func noEvent(eventID string) error { return unknownf("ops: there is no event %s", text.Quote(eventID)) }
