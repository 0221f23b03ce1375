package testbroker

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// rocketmqConfig is a broker whose commits are on disk, with small files.
const rocketmqConfig = `brokerClusterName=bluecone
brokerName=bluecone
brokerId=0
brokerIP1=127.0.0.1
bindAddress=127.0.0.1
listenPort=%[1]s
haListenPort=%[2]s
namesrvAddr=127.0.0.1:%[3]s
storePathRootDir=%[4]s
flushDiskType=SYNC_FLUSH
autoCreateTopicEnable=false
autoCreateSubscriptionGroup=false
maxMessageSize=1048576
mappedFileSizeCommitLog=16777216
mappedFileSizeConsumeQueue=600000
maxIndexNum=200000
maxHashSlotNum=50000
mappedFileSizeTimerLog=16777216
authenticationEnabled=true
authenticationProvider=org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider
authenticationMetadataProvider=org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider
initAuthenticationUser={"username":"%[5]s","password":"%[6]s"}
innerClientAuthenticationCredentials={"accessKey":"%[5]s","secretKey":"%[6]s"}
`

// rocketmqProxy is the proxy to which clients speak, with the broker in its process. Its port cannot be bound to one address. It
// tells a client the address by which the client has come.
const rocketmqProxy = `{"rocketMQClusterName": "bluecone", "proxyMode": "LOCAL", "namesrvAddr": "127.0.0.1:%[1]s",
"localServeAddr": "127.0.0.1", "useEndpointPortFromRequest": true,
"grpcServerPort": %[2]s, "remotingListenPort": %[3]s, "authenticationEnabled": true,
"authenticationProvider": "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider",
"authenticationMetadataProvider": "org.apache.rocketmq.proxy.auth.ProxyAuthenticationMetadataProvider",
"innerClientAuthenticationCredentials": "{\"accessKey\":\"%[4]s\",\"secretKey\":\"%[5]s\"}"}
`

// rocketmq starts a name server, and a proxy with a broker in it. No adapter uses it yet. Tried by hand with v5.1.4 of the client in
// Go, on a FIFO topic and an orderly group: messages sent by message group, and received by four receivers beside each other, kept
// their order, and wrong credentials and a missing topic failed at Start with their codes. An adapter has to know this of the client:
//
//   - It does not say from which queue a message is. A receiver has to stand for the partition, and the message id for the offset.
//   - It waits for the next message of one queue at a time, for 2 s not at all (ILLEGAL_POLLING_TIME), and for 10 s well.
//   - A property takes no control characters, and what is too large is an INTERNAL_SERVER_ERROR with a text.
//   - It sends three times by itself, also with WithMaxAttempts(1).
//   - It looks at no certificate unless it is given a TLS configuration.
//   - 23 goroutines were left two seconds after GracefulStop: its tickers, and the connections.
func rocketmq(b *Broker, home string) error {
	ports, err := freePorts(5)
	if err != nil {
		return err
	}
	names, proxy, remoting, broker, replicas := ports[0], ports[1], ports[2], ports[3], ports[4]
	b.URL = address("rocketmq", proxy)
	b.configure = func() error {
		if err := os.MkdirAll(b.path("conf"), 0o700); err != nil {
			return err
		}
		return errors.Join(
			b.write("namesrv.conf", "listenPort=%s\nbindAddress=127.0.0.1\n", names),
			b.write("broker.conf", rocketmqConfig, broker, replicas, names, b.path("data"), user, b.password()),
			b.write("proxy.json", rocketmqProxy, names, proxy, remoting, user, b.password()),
			b.write("conf/tools.yml", "accessKey: %s\nsecretKey: %s\n", user, b.password())) // of the administrator
	}
	command := rocketmqCommand(b, home)
	b.processes = []*server{
		{
			name:    "namesrv",
			command: func() *exec.Cmd { return command("namesrv.NamesrvStartup", "-c", b.path("namesrv.conf")) },
			ready:   func() error { return listens("127.0.0.1:" + names) },
		},
		{
			name: "proxy",
			command: func() *exec.Cmd {
				// Users are made again of the configuration: the password may have changed.
				_ = os.RemoveAll(filepath.Join(b.path("data"), "config", "users")) // the broker says so if it cannot start
				return command("proxy.ProxyStartup", "-pm", "local", "-n", "127.0.0.1:"+names, "-bc", b.path("broker.conf"),
					"-pc", b.path("proxy.json"))
			},
			ready: func() error {
				return answers(b.URL.Host, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", "\x00\x00")
			},
		},
	}
	b.admin = func(args ...string) error {
		args = append(args, "-n", "127.0.0.1:"+names, "-b", "127.0.0.1:"+broker)
		out, err := command("tools.command.MQAdminStartup", args...).CombinedOutput()
		if err == nil && strings.Contains(string(out), "success") {
			return nil
		}
		return fmt.Errorf("mqadmin %v: %w: %s", args, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// rocketmqCommand runs a main class with the broker's directory for a home.
func rocketmqCommand(b *Broker, home string) func(class string, args ...string) *exec.Cmd {
	return func(class string, args ...string) *exec.Cmd {
		cmd := java(home, "org.apache.rocketmq."+class, args...)
		cmd.Env = append(os.Environ(), "ROCKETMQ_HOME="+b.dir.Path,
			"JDK_JAVA_OPTIONS=--add-exports=java.base/sun.nio.ch=ALL-UNNAMED --add-opens=java.base/java.lang=ALL-UNNAMED "+
				"-Duser.home="+b.dir.Path+" -Drocketmq.home.dir="+b.dir.Path)
		return cmd
	}
}

// write writes a file of the broker's.
func (b *Broker) write(name, format string, args ...any) error {
	return os.WriteFile(b.path(name), fmt.Appendf(nil, format, args...), 0o600)
}

// CreateFIFO creates a topic of a RocketMQ that keeps the order within message groups, or does nothing if it is there.
func (b *Broker) CreateFIFO(topic string) error {
	if b.admin == nil {
		return errNotRocketMQ
	}
	return b.admin("updateTopic", "-t", topic, "-r", "4", "-w", "4", "-a", "+message.type=FIFO")
}

// CreateGroup creates a consumer group of a RocketMQ that takes one message of a message group at a time.
func (b *Broker) CreateGroup(group string) error {
	if b.admin == nil {
		return errNotRocketMQ
	}
	return b.admin("updateSubGroup", "-g", group, "-o", "true", "-r", "1000000")
}

var errNotRocketMQ = errors.New("testbroker: the broker is no RocketMQ")
