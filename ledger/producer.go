package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/uptrace/bun"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/ledger/ledgerv1"
)

// ProducerConfig configures a [Producer].
type ProducerConfig struct {
	// CheckURL is where the ledger reaches the [Producer], which is an http.Handler: an address that nobody else reaches. Required.
	CheckURL string
	// TTL is how long after Reserve the ledger asks what has become of a transaction, 1 s to 24 h. Default: 30 s.
	TTL time.Duration
	// Logger receives what goes wrong, never a token or a payload. Default: slog.Default().
	Logger *slog.Logger
}

// Producer publishes events at a ledger that follow transactions of a database without the tables of an outbox: each is published if,
// and only if, its transaction commits, whatever dies in between.
//
//	event, err := producer.Reserve(ctx, Paid{Order: 7})  // before the transaction
//	err = db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
//		… // the change
//		return ledger.Prepare(ctx, tx, event)
//	})
//	state, settleErr := producer.Settle(ctx, event)      // after it, however it has ended
//
// Whatever a crash leaves out the ledger fixes: it asks the Producer, which looks what the database says. A transaction that
// is open for longer than TTL may be asked about; the answer waits for it a while, and the ledger asks again.
//
// Where the producer has an outbox, its Save and a relay are simpler.
type Producer struct {
	cfg      ProducerConfig
	db       *bun.DB
	client   *Client
	barriers spi.Barriers
}

// NewProducer returns the producer of a database. It makes the table bc_barrier there if it is missing.
func NewProducer(ctx context.Context, db *bun.DB, client *Client, cfg ProducerConfig) (*Producer, error) {
	if db == nil || client == nil {
		return nil, errors.New("ledger.NewProducer: db and client must not be nil: make the client by ledger.NewClient")
	}
	if cfg.TTL == 0 {
		cfg.TTL = 30 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	var errs []error
	if u, err := url.Parse(cfg.CheckURL); err != nil || u.Host == "" {
		errs = append(errs, errors.New("ledger.ProducerConfig.CheckURL: write the URL under which the ledger reaches the producer"))
	}
	if cfg.TTL < minTTL || cfg.TTL > maxTTL {
		errs = append(errs, fmt.Errorf("ledger.ProducerConfig.TTL is %v: it must be between %v and %v", cfg.TTL, minTTL, maxTTL))
	}
	barriers, err := spi.NewBarriers(db)
	if err = errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	return &Producer{cfg: cfg, db: db, client: client, barriers: barriers}, barriers.Create(ctx, db)
}

// Reserve reserves an event: what [EventOf] takes. Nobody sees it until its transaction has committed.
func (p *Producer) Reserve(ctx context.Context, e bus.Event) (*Reserved, error) {
	m, err := EventOf(ctx, e)
	if err != nil {
		return nil, err
	}
	m.CheckUrl = p.cfg.CheckURL
	res, err := p.client.Reserve(ctx, &ledgerv1.ReserveRequest{Event: m, Ttl: durationpb.New(p.cfg.TTL)})
	if err != nil {
		return nil, err
	}
	return &Reserved{Token: res.GetReservationToken(), EventID: res.GetEventId()}, nil
}

// Settle tells the ledger what has become of the transaction of an event, and returns CONFIRMED or CANCELED. It may be called after a
// COMMIT, after a rollback, and after a COMMIT of which nobody knows whether it has happened: it looks. What has not committed then
// cannot commit any more. An error changes nothing: the ledger asks.
func (p *Producer) Settle(ctx context.Context, event *Reserved) (state string, err error) {
	if state, err = p.look(ctx, event.Token); err != nil {
		return "", err
	}
	if state == spi.Confirmed {
		_, err = p.client.Confirm(ctx, &ledgerv1.ConfirmRequest{ReservationToken: event.Token})
	} else {
		_, err = p.client.Cancel(ctx, &ledgerv1.CancelRequest{ReservationToken: event.Token})
	}
	return state, err
}

// look writes CANCELED unless CONFIRMED stands there, so that what it finds stays true.
func (p *Producer) look(ctx context.Context, token string) (state string, err error) {
	err = spi.InTx(ctx, p.db, func(ctx context.Context, tx bun.Tx) (err error) {
		state, err = p.barriers.Decide(ctx, tx, token)
		return err
	})
	return state, err
}

// answerFor is less than the ledger waits.
const answerFor = 5 * time.Second

// ServeHTTP answers the ledger's question: CONFIRMED if the transaction has committed, CANCELED if it cannot any more, and UNKNOWN
// while it is open, or the database does not answer.
func (p *Producer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var question struct {
		ReservationToken string `json:"reservationToken"`
	}
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4<<10)).Decode(&question)
	if r.Method != http.MethodPost || err != nil || !plainToken.MatchString(question.ReservationToken) {
		http.Error(w, `POST {"reservationToken": "…", "eventId": "…"}`, http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), answerFor)
	defer cancel()
	state, err := p.look(ctx, question.ReservationToken)
	if err != nil {
		p.cfg.Logger.WarnContext(ctx, "it is not known yet what has become of a transaction; the ledger asks again", "error", err)
		state = "UNKNOWN"
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"state": state}) // the connection is the ledger's
}

const (
	keepBarriers = 24 * time.Hour // longer than any transaction
	tidyAtOnce   = 1000
)

// Tidy removes barriers that are more than a day old and whose reservations have ended at the ledger, a thousand at most, and settles
// those that have not. Call it once a day. It returns how many it has removed.
func (p *Producer) Tidy(ctx context.Context) (removed int, err error) {
	old, err := p.barriers.Old(ctx, p.db, keepBarriers, tidyAtOnce)
	if err != nil {
		return 0, err
	}
	for _, b := range old {
		res, err := p.client.QueryReservation(ctx, &ledgerv1.QueryReservationRequest{ReservationToken: b.Token})
		if err == nil && res.GetState() == spi.Prepared {
			_, err = p.Settle(ctx, &Reserved{Token: b.Token})
		}
		if err != nil {
			return removed, err
		}
		if err := p.barriers.Remove(ctx, p.db, b.Token); err != nil {
			return removed, err
		}
		removed++
	}
	return removed, nil
}
