// Package web is the demo's HTTP API.
package web

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/bluecone-go/bluecone/demo/bluecone/module/coupon"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/order"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/points"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/wallet"
	"github.com/bluecone-go/bluecone/demo/bluecone/monolith"
	"github.com/bluecone-go/bluecone/demo/httpserver"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/schedule"
)

// API serves one instance of the monolith.
type API struct {
	app    *monolith.App
	faults bool
}

// Config says what the API serves, and to whom.
type Config struct {
	Faults  bool                     // adds the calls that break things on purpose
	Metrics http.Handler             // required
	Hosts   []string                 // names that requests may be for, beside localhost and IP addresses
	Session func(*http.Request) bool // reports whether a browser may change something; nil: none may

	bodyTime time.Duration
}

// New returns the API's handler.
func New(app *monolith.App, conf Config) http.Handler {
	if conf.bodyTime == 0 {
		conf.bodyTime = bodyTime
	}
	a := &API{app: app, faults: conf.Faults}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /users", a.createUser)
	mux.HandleFunc("GET /users/{id}/assets", a.assets)
	mux.HandleFunc("POST /orders", a.createOrder)
	mux.HandleFunc("GET /orders/{id}", a.getOrder)
	mux.HandleFunc("POST /orders/{id}/pay", a.pay)
	mux.HandleFunc("POST /orders/{id}/cancel", a.cancel)
	mux.HandleFunc("POST /orders/{id}/refund", a.refund)
	mux.HandleFunc("GET /orders/{id}/timeline", a.timeline)
	mux.HandleFunc("GET /stats", a.stats)
	health := ops.Health(app.Ops)
	mux.Handle("GET /livez", health)
	mux.Handle("GET /readyz", health)
	mux.Handle("GET /metrics", conf.Metrics)
	if conf.Faults {
		mux.HandleFunc("POST /faults", a.fault)
		mux.HandleFunc("POST /jobs/{code}/run", a.runJob)
	}
	return traced(guarded(conf, httpserver.Errors(mux)))
}

// decode reads a JSON body of exactly the fields of v. An empty body is an empty object.
func decode(w http.ResponseWriter, r *http.Request, v any) bool {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // it has arrived: what is done with it may take its time
	if err == nil && len(body) > 0 {
		err = unmarshal(body, v)
	}
	if err != nil {
		fail(w, r, &order.Error{Kind: order.Invalid, Code: "BAD_JSON", Text: "the body cannot be read: " + err.Error()})
		return false
	}
	return true
}

func unmarshal(body []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if dec.More() {
		return errors.New("there is something behind the JSON value")
	}
	if replaced(body, v) {
		return errors.New("a string of it is not valid Unicode")
	}
	return nil
}

// replaced reports whether the decoder has put a replacement character where body has none.
func replaced(body []byte, v any) bool {
	again, err := json.Marshal(v)
	return err == nil && bytes.Count(again, []byte("\ufffd")) >
		bytes.Count(body, []byte("\ufffd"))+bytes.Count(bytes.ToLower(body), []byte(`\ufffd`))
}

// fail answers an error. Whatever is not a refusal by the rules of the business is 503: the
// outcome is unknown, and the call may be repeated.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	var refusal *order.Error
	switch {
	case errors.As(err, &refusal):
		status := map[order.Kind]int{
			order.Invalid: http.StatusBadRequest, order.NotFound: http.StatusNotFound,
			order.Conflict: http.StatusConflict,
		}[refusal.Kind]
		httpserver.Fail(w, status, refusal.Text, refusal.Code)
	case errors.Is(err, sql.ErrNoRows), errors.Is(err, monolith.ErrNoJob):
		httpserver.Fail(w, http.StatusNotFound, err.Error(), "NOT_FOUND")
	case errors.Is(err, schedule.ErrBusy):
		httpserver.Fail(w, http.StatusConflict, err.Error(), "BUSY")
	default:
		httpserver.Unavailable(w, r, err)
	}
}

func (a *API) createUser(w http.ResponseWriter, r *http.Request) {
	var req order.NewUser
	if !decode(w, r, &req) {
		return
	}
	u, err := a.app.Orders.CreateUser(r.Context(), r.Header.Get("Idempotency-Key"), req)
	if err != nil {
		fail(w, r, err)
		return
	}
	httpserver.Answer(w, http.StatusCreated, u)
}

func (a *API) createOrder(w http.ResponseWriter, r *http.Request) {
	var req order.NewOrder
	if !decode(w, r, &req) {
		return
	}
	a.app.Pace.Wait(r.Context())
	o, err := a.app.Orders.Create(forUser(r.Context(), req.UserID), r.Header.Get("Idempotency-Key"), req)
	if err != nil {
		fail(w, r, err)
		return
	}
	httpserver.Answer(w, http.StatusCreated, map[string]any{"orderId": o.OrderID, "status": o.Status, "payableCents": o.PayableCents})
}

func (a *API) getOrder(w http.ResponseWriter, r *http.Request) {
	o, err := a.app.Orders.Get(r.Context(), r.PathValue("id"))
	if err != nil {
		fail(w, r, err)
		return
	}
	httpserver.Answer(w, http.StatusOK, o)
}

func (a *API) pay(w http.ResponseWriter, r *http.Request) {
	var req struct {
		PayNo     string `json:"payNo"`
		LoseEvent bool   `json:"loseEvent"`
	}
	if !decode(w, r, &req) {
		return
	}
	if req.LoseEvent && !a.faults {
		fail(w, r, &order.Error{Kind: order.Invalid, Code: "FAULTS_OFF", Text: "loseEvent needs an instance started with --faults"})
		return
	}
	o, err := a.app.Orders.Pay(r.Context(), r.PathValue("id"), req.PayNo, req.LoseEvent)
	if err != nil {
		fail(w, r, err)
		return
	}
	httpserver.Answer(w, http.StatusOK, map[string]string{"orderId": o.OrderID, "status": o.Status})
}

func (a *API) cancel(w http.ResponseWriter, r *http.Request) {
	o, err := a.app.Orders.Cancel(r.Context(), r.PathValue("id"))
	if err != nil {
		fail(w, r, err)
		return
	}
	httpserver.Answer(w, http.StatusOK, map[string]string{"orderId": o.OrderID, "status": o.Status})
}

func (a *API) refund(w http.ResponseWriter, r *http.Request) {
	var req struct {
		RefundID string `json:"refundId"`
	}
	if !decode(w, r, &req) {
		return
	}
	o, err := a.app.Orders.Refund(r.Context(), r.PathValue("id"), req.RefundID)
	if err != nil {
		fail(w, r, err)
		return
	}
	httpserver.Answer(w, http.StatusOK, map[string]string{"orderId": o.OrderID, "status": o.Status})
}

// Assets is everything a user has.
type Assets struct {
	Wallet  wallet.Balance  `json:"wallet"`
	Points  points.Balance  `json:"points"`
	Coupons []coupon.Coupon `json:"coupons"`
}

// AssetsOf reads everything a user has.
func AssetsOf(ctx context.Context, app *monolith.App, userID string) (s Assets, err error) {
	if s.Wallet, err = app.Wallet.Get(ctx, app.DB, userID); err != nil {
		return s, err
	}
	if s.Points, err = app.Points.Get(ctx, app.DB, userID); err != nil {
		return s, err
	}
	s.Coupons, err = app.Coupons.Of(ctx, app.DB, userID)
	return s, err
}

func (a *API) assets(w http.ResponseWriter, r *http.Request) {
	s, err := AssetsOf(r.Context(), a.app, r.PathValue("id"))
	if err != nil {
		fail(w, r, err)
		return
	}
	httpserver.Answer(w, http.StatusOK, s)
}

func (a *API) stats(w http.ResponseWriter, r *http.Request) {
	s, err := a.app.Stats(r.Context())
	if err != nil {
		fail(w, r, err)
		return
	}
	httpserver.Answer(w, http.StatusOK, s)
}

func (a *API) fault(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Consumer string `json:"consumer"`
		Mode     string `json:"mode"`
		DelayMs  int    `json:"delayMs"`
	}
	if !decode(w, r, &req) {
		return
	}
	known := map[string]bool{coupon.Consumer: true, wallet.Consumer: true, points.Consumer: true}
	if !known[req.Consumer] || req.DelayMs < 0 || req.DelayMs > 600_000 {
		fail(w, r, &order.Error{
			Kind: order.Invalid, Code: "INVALID",
			Text: "consumer must be CouponConsumer, WalletConsumer or PointsConsumer, and delayMs between 0 and 600000",
		})
		return
	}
	if err := a.app.Faults.Put(req.Consumer, req.Mode, time.Duration(req.DelayMs)*time.Millisecond); err != nil {
		fail(w, r, &order.Error{Kind: order.Invalid, Code: "INVALID", Text: err.Error()})
		return
	}
	httpserver.Answer(w, http.StatusOK, req)
}

func (a *API) runJob(w http.ResponseWriter, r *http.Request) {
	report, err := a.app.RunJob(r.Context(), r.PathValue("code"))
	if err != nil {
		fail(w, r, err)
		return
	}
	httpserver.Answer(w, http.StatusOK, map[string]any{"job": r.PathValue("code"), "report": report})
}
