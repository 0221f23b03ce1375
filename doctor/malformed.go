package doctor

import (
	"context"
	"strconv"
	"time"

	"github.com/bluecone-go/bluecone/internal/store/view"
)

// longLease is how far in the future no time of an instance or a job can be: a lease is a minute, and a turn is never ahead.
const longLease = 24 * time.Hour

// malformedRows finds rows of bc_consumer_type, bc_instance and bc_job_lease that the library has not written. They harm nobody
// else, but a job whose lease or turn is in the future does not run until then.
func malformedRows(ctx context.Context, x *exam) ([]Finding, error) {
	var found []Finding
	types, err := view.MalformedTypes(ctx, x.sql, mostFindings+1)
	if err != nil {
		return nil, err
	}
	for _, t := range types {
		found = append(found, warn("type_malformed", "a row of bc_consumer_type is malformed: type {type} of the consumer {consumer} has no "+
			"name, or its consumer is not in bc_consumer", "delete the row: an instance that has the consumer writes both",
			values{"type": strconv.Quote(t.EventType), "consumer": strconv.Quote(t.Consumer)})...)
	}
	instances, err := view.MalformedInstances(ctx, x.sql, longLease, mostFindings+1)
	if err != nil {
		return nil, err
	}
	for _, name := range instances {
		found = append(found, warn("instance_malformed", "the row of the instance {instance} in bc_instance is malformed: it has no name, fewer "+
			"events in flight than none, or was last seen in the future", "delete the row: an instance that runs writes its own",
			values{"instance": strconv.Quote(name)})...)
	}
	jobs, err := view.MalformedJobs(ctx, x.sql, longLease, mostFindings+1)
	for _, code := range jobs {
		found = append(found, warn("job_malformed", "the row of the job {job} in bc_job_lease is malformed: it has no code, a state that no job "+
			"has, a version below zero, or a lease or turn that is more than a day ahead, until which the job does not run",
			"delete the row: an instance that has the job writes it", values{"job": strconv.Quote(code)})...)
	}
	return found, err
}

// noNumbers finds texts in columns of numbers, which only SQLite takes. The engine reads them as 0, or leaves the row alone.
func noNumbers(ctx context.Context, x *exam) ([]Finding, error) {
	cells, err := view.NoNumbers(ctx, x.sql, mostCells)
	var found []Finding
	for _, c := range cells {
		found = append(found, warn("no_number", "{n} of the newest {most} rows of {table} have something else than a whole number in {column}",
			"write the number that belongs there, or the column's default", values{
				"n": strconv.Itoa(c.Count), "most": strconv.Itoa(mostCells), "table": c.Table, "column": c.Column,
			})...)
	}
	return found, err
}
