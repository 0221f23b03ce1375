package main

// ofTheWiring are the sabotages of what the first steps of a user rest on.
func ofTheWiring() []sabotage {
	return []sabotage{
		{
			"events with options share their metadata", "outbox/option.go",
			"c.meta = maps.Clone(inner.meta)", "_ = maps.Clone(inner.meta)",
			engine, "EventsWithOptionsShareNothing", nil,
		},
		{
			"a follow-up event loses its tenant", "outbox/option.go",
			"c.tenantID, c.storeID = o.TenantID, o.StoreID", "_ = o",
			engine, "FollowUpEventsInherit", nil,
		},
		{
			"the tenant that the producer names does not count in a handler", "outbox/option.go",
			"case c.hasTenant:", "case c.hasTenant && o.TenantID == 0:",
			engine, "FollowUpEventsInherit", nil,
		},
		{
			"what a batch of several tenants saves loses its tenant", "outbox/option.go",
			"case o.Mixed:", "case o.Mixed && c.hasTenant:",
			engine, "BatchHandlerLosesNoTenant", nil,
		},
		{
			"a batch handler cannot say of which message it speaks", "bus/metadata.go",
			"ctx = ofMessage(ctx, &m.Envelope, origin.Of(ctx).Added)", "_ = ofMessage(ctx, &m.Envelope, origin.Of(ctx).Added)",
			engine, "BatchHandlerSpeaks", nil,
		},
	}
}
