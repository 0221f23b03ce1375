package testbroker

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bluecone-go/bluecone/internal/process"
)

// kafkaConfig is one node that is broker and controller. Clients log in; the node itself uses listeners of its own.
const kafkaConfig = `process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:%[2]s
controller.listener.names=CONTROLLER
inter.broker.listener.name=INTERNAL
listeners=CLIENT://127.0.0.1:%[1]s,CONTROLLER://127.0.0.1:%[2]s,INTERNAL://127.0.0.1:%[3]s
advertised.listeners=CLIENT://%[4]s,INTERNAL://127.0.0.1:%[3]s
listener.security.protocol.map=CLIENT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT,INTERNAL:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.client.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_%[5]s="%[6]s";
log.dirs=%[7]s
log.flush.interval.messages=1
auto.create.topics.enable=false
message.max.bytes=1048576
num.partitions=4
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
`

// kafkaTLS is a further listener, where clients log in as at the first. Later lines of a file count.
const kafkaTLS = `listeners=CLIENT://127.0.0.1:%[1]s,CONTROLLER://127.0.0.1:%[2]s,INTERNAL://127.0.0.1:%[3]s,SECURE://127.0.0.1:%[4]s
advertised.listeners=CLIENT://127.0.0.1:%[1]s,INTERNAL://127.0.0.1:%[3]s,SECURE://127.0.0.1:%[4]s
listener.security.protocol.map=CLIENT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT,INTERNAL:PLAINTEXT,SECURE:SASL_SSL
listener.name.secure.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_%[5]s="%[6]s";
ssl.keystore.type=PEM
ssl.keystore.location=%[7]s
`

func kafka(b *Broker, home string) error {
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	port, controller, internal := ports[0], ports[1], ports[2]
	b.URL = address("kafka", port)
	config := b.path("server.properties")
	b.configure = func() error {
		text := fmt.Appendf(nil, kafkaConfig, port, controller, internal, b.advertised(), user, b.password(), b.path("data"))
		if b.secure != nil {
			text = fmt.Appendf(text, kafkaTLS, port, controller, internal, b.secure.port, user, b.password(), b.path("both.pem"))
		}
		if err := os.WriteFile(config, text, 0o600); err != nil {
			return err
		}
		if _, err := os.Stat(b.path("data")); err == nil {
			return nil // it was formatted when it was started for the first time
		}
		id := make([]byte, 16)
		_, _ = rand.Read(id) // it never fails
		cluster := base64.RawURLEncoding.EncodeToString(id)
		out, err := java(home, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", config).CombinedOutput()
		if err != nil {
			return fmt.Errorf("format the storage of Kafka: %w: %s", err, strings.TrimSpace(string(out)))
		}
		return nil
	}
	b.processes = []*server{{
		name:    "kafka",
		command: func() *exec.Cmd { return java(home, "kafka.Kafka", config) },
		ready:   func() error { return kafkaAnswers(b.URL.Host) },
	}}
	return nil
}

// kafkaAnswers asks for the versions of the protocol: a request with a length, a key, a version, a number and no client's name.
func kafkaAnswers(address string) error {
	conn, err := dial(address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff"); err != nil {
		return err
	}
	got := make([]byte, 10)
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if string(got[4:]) != "\x00\x00\x00\x01\x00\x00" { // the number, and no error
		return errors.New("it does not answer as Kafka does")
	}
	return nil
}

// java runs a main class with the jars of a broker, small and soon.
func java(home, class string, args ...string) *exec.Cmd {
	flags := []string{"-Xms64m", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", filepath.Join(home, "lib", "*")}
	return exec.Command("java", append(append(flags, class), args...)...)
}

// freePorts are some at a time.
func freePorts(n int) ([]string, error) {
	ports := make([]string, n)
	for i := range ports {
		var err error
		if ports[i], err = process.FreePort(); err != nil {
			return nil, err
		}
	}
	return ports, nil
}
