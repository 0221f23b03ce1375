// Package listen waits for notifications of PostgreSQL on a connection of its own.
//
// Only pgx hands notifications to somebody who has no more than a pool of database/sql: by Conn().WaitForNotification of its
// connection. It is called by name: no package of the library imports a driver.
package listen

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// ErrCannot means that nobody can listen with this pool, however often it is tried.
var ErrCannot = errors.New("cannot listen")

const (
	// silentFor is how long a connection may be silent before it is asked whether it is still there.
	silentFor = 30 * time.Second
	// answerIn is how long its answer may take.
	answerIn = 10 * time.Second
	// again is how long it takes until a lost connection is replaced.
	again = time.Second
)

// Keep listens on a channel, with another connection when one was lost, until ctx ends, or until it has turned out that nobody can
// with this pool. It calls isListening when it has begun and when it has ended to listen, and notified with the payload of each
// notification. It says once that it does not listen.
func Keep(
	ctx context.Context, db *sql.DB, channel string, logger *slog.Logger, isListening func(bool), notified func(payload string),
) {
	isSaid := false
	for ctx.Err() == nil {
		isReady := false
		err := Listen(ctx, db, channel, func() {
			isReady, isSaid = true, false
			isListening(true)
		}, notified)
		if isReady {
			isListening(false)
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrCannot):
			logger.WarnContext(ctx, "commits are not heard of; the poll finds the events of other instances", telemetry.Err, err)
			return
		case !isSaid:
			logger.WarnContext(ctx, "commits are not heard of for now; the poll finds the events of other instances", telemetry.Err, err)
			isSaid = true
		}
		pause := time.NewTimer(again)
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
}

// Listen listens on a channel until ctx ends or the connection is lost. It calls ready once it listens, and notified with the
// payload of each notification. It takes one connection of the pool, and closes it in the end: one that goes on listening is of no
// use to others. If the pool's driver is not pgx, or a pooler is in between, it answers [ErrCannot].
func Listen(ctx context.Context, db *sql.DB, channel string, ready func(), notified func(payload string)) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close() // again, if it was closed
	direct, err := prepared.IsDirect(ctx, conn)
	switch {
	case err != nil:
		return fmt.Errorf("ask for the process of the server: %w", err)
	case !direct:
		return fmt.Errorf("%w: the driver is not pgx, or a pooler (PgBouncer, say) is between this program and the server: "+
			"only a connection of pgx to the server itself gets notifications", ErrCannot)
	}
	if _, err := conn.ExecContext(ctx, "LISTEN "+channel); err != nil {
		return fmt.Errorf("LISTEN: %w", err)
	}
	err = conn.Raw(func(driverConn any) error {
		ready()
		return errors.Join(receive(ctx, driverConn, notified), driver.ErrBadConn) // which closes the connection
	})
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("wait for a notification: %w", err)
}

// receive hands over notifications until ctx ends or the connection is lost.
func receive(ctx context.Context, driverConn any, notified func(payload string)) error {
	wait, ok := waiting(driverConn)
	if !ok {
		return fmt.Errorf("%w: the driver %T has no WaitForNotification", ErrCannot, driverConn)
	}
	for {
		quiet, cancel := context.WithTimeout(ctx, silentFor)
		payload, err := wait(quiet)
		isQuiet := quiet.Err() != nil
		cancel()
		switch {
		case err == nil:
			notified(payload)
		case ctx.Err() != nil || !isQuiet:
			return err
		default:
			if err := ping(ctx, driverConn); err != nil {
				return fmt.Errorf("the connection is silent: %w", err)
			}
		}
	}
}

// ping asks whether the server is still there.
func ping(ctx context.Context, driverConn any) error {
	p, ok := driverConn.(driver.Pinger)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	return p.Ping(ctx)
}

// waiting is Conn().WaitForNotification of a connection of pgx. The names are constants, or the linker would keep all methods of
// all types.
func waiting(driverConn any) (wait func(ctx context.Context) (payload string, err error), ok bool) {
	conn := reflect.ValueOf(driverConn).MethodByName("Conn")
	if !conn.IsValid() || conn.Type().NumIn() != 0 || conn.Type().NumOut() != 1 {
		return nil, false
	}
	method := conn.Call(nil)[0].MethodByName("WaitForNotification")
	if !method.IsValid() || method.Type().NumIn() != 1 || method.Type().NumOut() != 2 {
		return nil, false
	}
	return func(ctx context.Context) (string, error) {
		answer := method.Call([]reflect.Value{reflect.ValueOf(ctx)})
		if err, failed := reflect.TypeAssert[error](answer[1]); failed {
			return "", err
		}
		return answer[0].Elem().FieldByName("Payload").String(), nil
	}, true
}
