package view

import (
	"context"
	"time"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// RottenTypes lists rows of bc_consumer_type that say nothing to anybody: without a type, or of a consumer that is not in
// bc_consumer. It goes through the table by its primary key.
func RottenTypes(ctx context.Context, r Reader, most int) ([]ConsumerType, error) {
	return r.consumerTypes(ctx, "LEFT JOIN bc_consumer c ON c.name = t.consumer_name WHERE t.event_type = '' OR c.name IS NULL", most)
}

// RottenInstances lists rows of bc_instance that no instance has written: without a name, with less than no events in flight, or
// last seen later than so long from now. It goes through the table by its primary key.
func RottenInstances(ctx context.Context, r Reader, than time.Duration, most int) ([]string, error) {
	return r.texts(ctx, "SELECT "+r.name("name")+" FROM bc_instance WHERE name = '' OR in_flight < 0 OR seen_at > "+r.D.After+
		" ORDER BY name LIMIT ?", dialect.Micro(than), most)
}

// RottenJobs lists rows of bc_job_lease that no instance has written: without a code, in another state than these, with a version
// below zero, or with a lease or a turn later than so long from now. It goes through the table by its primary key.
func RottenJobs(ctx context.Context, r Reader, than time.Duration, most int) ([]string, error) {
	return r.texts(ctx, "SELECT "+r.name("job_code")+" FROM bc_job_lease WHERE job_code = '' OR lock_version < 0 OR "+
		"last_status NOT IN ('RUNNING', 'SUCCESS', 'FAILED') OR locked_until > "+r.D.After+" OR last_due_at > "+r.D.After+
		" ORDER BY job_code LIMIT ?", dialect.Micro(than), dialect.Micro(than), most)
}
