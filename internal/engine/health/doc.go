// Package health watches over a running publisher: whether the database is away, which is said once ([Outage]), whether it has
// gone silent ([Silence]), that this instance is alive ([Heartbeat]), what the gauges read ([Gauges]), and whether PostgreSQL's
// statistics have fallen behind ([Statistics]).
package health
