package simulation

import (
	"fmt"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
)

// Two tenants have an aggregate of the same id each, all in one: what is DEAD of the first must keep none of the other's.

const patient = 1 // the tenant whose DEAD deliveries the operator leaves alone until the other's are all done

// withTenants gives every event without a key to the one aggregate of one of two tenants, and has the first of them refused.
func (p *plan) withTenants() {
	p.tenants = true
	p.inOneAggregate()
	p.failures["Ordered/0"] = failure{"permanent", 1}
}

// tenantOf is whose event this is, 0 for nobody's.
func (p plan) tenantOf(n, key int) int64 {
	if !p.tenants || key > 0 {
		return 0
	}
	return patient + int64(n%2)
}

// lineage names an aggregate of a tenant, in which there is an order.
func lineage(tenant int64, aggregate string) string {
	if tenant == 0 {
		return aggregate
	}
	return fmt.Sprint(aggregate, " of ", tenant)
}

// lineOf is the aggregate of a message.
func (l *life) lineOf(m bus.Message[happened]) string {
	if l.plan.isDelayed(m.Payload.N) {
		return fmt.Sprint("delayed ", m.Payload.N) // it has its place when it falls due
	}
	return lineage(m.TenantID, m.AggregateID)
}

// isLeft reports whether the operator does not decide about a delivery yet.
func (l *life) isLeft(db *bun.DB, tenant int64) bool {
	return l.plan.tenants && tenant == patient && (!l.isCalm() ||
		l.count(db, "SELECT (SELECT COUNT(*) FROM bc_outbox_event e WHERE e.status <> 'SENT' AND COALESCE(e.tenant_id, 0) <> ?0) + "+
			"(SELECT COUNT(*) FROM bc_event_consume_log l WHERE l.status NOT IN ('SUCCESS', 'SKIPPED') AND COALESCE(l.tenant_id, 0) <> ?0)",
			patient) > 0)
}
