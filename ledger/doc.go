// Package ledger is one book of events for several services: programs that have left the monolith, and producers in other
// languages, publish and consume by calls (gRPC, gRPC-Web, or JSON over HTTP/1.1), on the tables and the engine of the outbox.
//
// [New] makes the service for an outbox; a publisher has to run beside it, and writes the deliveries of the consumers that
// ask by Fetch. Several instances may work on one database, behind one address. It is closed until an [Authorizer] is given:
// [ReadTokens] reads one from a file.
package ledger
