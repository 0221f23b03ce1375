package testbroker

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
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
"grpcServerPort": %[2]s, "remotingListenPort": %[3]s, "topicRouteServiceCacheRefreshSeconds": 1, "authenticationEnabled": true,
"authenticationProvider": "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider",
"authenticationMetadataProvider": "org.apache.rocketmq.proxy.auth.ProxyAuthenticationMetadataProvider",
"innerClientAuthenticationCredentials": "{\"accessKey\":\"%[4]s\",\"secretKey\":\"%[5]s\"}"%[6]s}
`

// rocketmqTLS is the rest of the proxy's configuration where it speaks TLS, which it does on the same port.
const rocketmqTLS = `, "tlsTestModeEnable": false, "tlsCertPath": "%[3]s", "tlsKeyPath": "%[4]s"`

// rocketmq starts a name server, and a proxy with a broker in it. Topics and groups are created by its administrator only.
func rocketmq(b *Broker, home string) error {
	ports, err := freePorts(5)
	if err != nil {
		return err
	}
	names, proxy, remoting, broker, replicas := ports[0], ports[1], ports[2], ports[3], ports[4]
	b.URL = address("rocketmq", proxy)
	if b.secure != nil {
		b.secure.port = proxy
	}
	b.configure = func() error {
		if err := os.MkdirAll(b.path("conf"), 0o700); err != nil {
			return err
		}
		return errors.Join(
			b.write("namesrv.conf", "listenPort=%s\nbindAddress=127.0.0.1\n", names),
			b.write("broker.conf", rocketmqConfig, broker, replicas, names, b.path("data"), user, b.password()),
			b.write("proxy.json", rocketmqProxy, names, proxy, remoting, user, b.password(), b.secured(rocketmqTLS)),
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
		for began := time.Now(); ; { // it waits for seconds only, which a busy broker may take
			out, err := command("tools.command.MQAdminStartup", args...).CombinedOutput()
			if err == nil && strings.Contains(string(out), "success") {
				return nil
			}
			if time.Since(began) > startLimit {
				return fmt.Errorf("mqadmin %v: %v: %s", args, err, strings.TrimSpace(string(out))) //nolint:errorlint // err may be nil
			}
		}
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

// CreateFIFO creates topics of a RocketMQ that keep the order within message groups. [Broker.Restart] waits for them.
func (b *Broker) CreateFIFO(topics ...string) error {
	var list []map[string]any
	for _, name := range topics {
		list = append(list, map[string]any{
			"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "attributes": map[string]string{"+message.type": "FIFO"},
		})
	}
	create := func() error { return b.create("updateTopicList", list) }
	b.restarted = create // by which the name server, which has started, too, knows them at once
	return create()
}

// CreateGroups creates consumer groups of a RocketMQ that take one message of a message group at a time, and never give one up.
func (b *Broker) CreateGroups(groups ...string) error {
	var list []map[string]any
	for _, name := range groups {
		list = append(list, map[string]any{"groupName": name, "consumeMessageOrderly": true, "retryMaxTimes": 1_000_000})
	}
	return b.create("updateSubGroupList", list)
}

// Admin runs a command of RocketMQ's administrator, such as updateTopic.
func (b *Broker) Admin(args ...string) error {
	if b.admin == nil {
		return errNotRocketMQ
	}
	return b.admin(args...)
}

// create runs a command that creates all of a list by one start of Java.
func (b *Broker) create(command string, list any) error {
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return errors.Join(b.write(command+".json", "%s", text), b.Admin(command, "-f", b.path(command+".json")))
}

var errNotRocketMQ = errors.New("testbroker: the broker is no RocketMQ")
