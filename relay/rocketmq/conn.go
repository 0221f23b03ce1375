package rocketmq

import (
	"context"
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // the protocol has no other
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-clients/golang/v5/metadata"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/bluecone-go/bluecone/relay"
)

const (
	firstPause = 100 * time.Millisecond
	mostPause  = 3 * time.Second
	// goneAfter is how long the other side may confirm nothing of what was sent before the connection counts as broken.
	goneAfter = 20 * time.Second
	// askAfter is how often an idle connection is tried. Servers of gRPC end those that are tried more often.
	askAfter = 5 * time.Minute
)

// conn is a connection to the proxy. gRPC makes it when something is asked, and again when it breaks.
type conn struct {
	*grpc.ClientConn
	v2.MessagingServiceClient
	id    string // by which the proxy knows this client
	trust *trust // nil without TLS
}

func (t target) dial() (*conn, error) {
	id := "bluecone@" + uuid.NewString()
	transport, trusted := insecure.NewCredentials(), (*trust)(nil)
	if t.tls != nil {
		trusted = &trust{TransportCredentials: credentials.NewTLS(t.tls), failed: new(atomic.Pointer[error])}
		transport = trusted
	}
	c, err := grpc.NewClient("dns:///"+t.host,
		grpc.WithTransportCredentials(transport), grpc.WithPerRPCCredentials(login{t, id}), grpc.WithDisableServiceConfig(), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)), grpc.WithIdleTimeout(0),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: askAfter, Timeout: goneAfter}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstPause, Multiplier: 2, Jitter: 0.2, MaxDelay: mostPause},
			MinConnectTimeout: answerLimit,
		}))
	if err != nil {
		return nil, fmt.Errorf("rocketmq: %w", err)
	}
	return &conn{c, v2.NewMessagingServiceClient(c), id, trusted}, nil
}

// trust is TLS that remembers the error of the last handshake, of which gRPC keeps the text only.
type trust struct {
	credentials.TransportCredentials

	failed *atomic.Pointer[error]
}

// ClientHandshake begins a connection.
func (t *trust) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := t.TransportCredentials.ClientHandshake(ctx, authority, raw)
	t.failed.Store(&err)
	return c, info, err
}

// Clone shares what is remembered.
func (t *trust) Clone() credentials.TransportCredentials {
	return &trust{t.TransportCredentials.Clone(), t.failed}
}

// why is the error of a call, or of the handshake that it has failed by, if that is about what is trusted.
func (t *trust) why(err error) error {
	if t == nil || status.Code(err) != codes.Unavailable {
		return err
	}
	if last := t.failed.Load(); last != nil && relay.IsUntrusted(*last) {
		return *last
	}
	return err
}

// login is what every request says about its client, with a signature where there is a user.
type login struct {
	target
	id string
}

// GetRequestMetadata signs the time of a request.
func (l login) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	now := time.Now().UTC().Format("20060102T150405Z")
	md := map[string]string{
		metadata.LanguageKey: metadata.LanguageValue, metadata.ProtocolKey: metadata.ProtocolValue, metadata.VersionKey: metadata.VersionValue,
		metadata.ClintID: l.id, metadata.RequestID: uuid.NewString(), metadata.DateTime: now,
	}
	if secret, _ := l.user.Password(); l.user.Username() != "" {
		signature := hmac.New(sha1.New, []byte(secret))
		_, _ = signature.Write([]byte(now)) // a hash never fails
		md[metadata.Authorization] = fmt.Sprintf("%s %s=%s/%s/%s, %s=%s, %s=%s", metadata.EncryptHeader,
			metadata.Credential, l.user.Username(), "", metadata.Rocketmq, metadata.SignedHeaders, metadata.DateTime,
			metadata.Signature, hex.EncodeToString(signature.Sum(nil)))
	}
	return md, nil
}

// RequireTransportSecurity says that requests may be plain: the secret is not in them.
func (login) RequireTransportSecurity() bool { return false }

func resource(name string) *v2.Resource { return &v2.Resource{Name: name} }

// brokers are those that have queues of the topic. The topic has to be there, and to keep the order within message groups.
func (t target) brokers(ctx context.Context, c *conn) ([]*v2.MessageQueue, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	answer, err := c.QueryRoute(ctx, &v2.QueryRouteRequest{Topic: resource(t.topic), Endpoints: &v2.Endpoints{}})
	if err = t.outcome(t.topic, c.trust.why(err), answer.GetStatus()); err != nil {
		return nil, err
	}
	found, err := onePerBroker(t.topic, answer.GetMessageQueues())
	return found, classify(err)
}

// onePerBroker are queues of all brokers of a topic, or an error if they cannot keep the order.
func onePerBroker(topic string, queues []*v2.MessageQueue) ([]*v2.MessageQueue, error) {
	seen := make(map[string]bool)
	var brokers []*v2.MessageQueue
	for _, q := range queues {
		switch {
		case !slices.Contains(q.GetAcceptMessageTypes(), v2.MessageType_FIFO):
			return nil, errTopic(topic, "keeps no order: it is not FIFO, and has to be made anew")
		case !proto.Equal(q.GetBroker().GetEndpoints(), queues[0].GetBroker().GetEndpoints()):
			return nil, refusal{fmt.Sprintf("the topic %s has queues behind different proxies: run them in CLUSTER mode", topic)}
		case !seen[q.GetBroker().GetName()]:
			seen[q.GetBroker().GetName()] = true
			brokers = append(brokers, q)
		}
	}
	if len(brokers) == 0 {
		return nil, errors.New("the topic has no queue now")
	}
	return brokers, nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
