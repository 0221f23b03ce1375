import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A producer and a consumer of the ledger, in nothing but the JDK: a program with a library for JSON writes the parsing shorter.
 *
 * <pre>
 *   LEDGER=http://127.0.0.1:8085 TOKEN=shop-token java Ledger.java publish 7 4200
 *   LEDGER=http://127.0.0.1:8085 TOKEN=points-token java Ledger.java consume
 * </pre>
 */
public final class Ledger {
    private static final HttpClient HTTP = HttpClient.newBuilder().connectTimeout(Duration.ofSeconds(10)).build();

    /** What the consumer needs of a delivery. */
    private record Delivery(String token, String order, long cents) {}

    /** Calls the ledger, again while it cannot be reached. */
    private static String call(String method, String json) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(System.getenv("LEDGER") + "/bluecone.ledger.v1.Ledger/" + method))
            .header("Content-Type", "application/json").header("Authorization", "Bearer " + System.getenv("TOKEN"))
            .timeout(Duration.ofSeconds(70)).POST(HttpRequest.BodyPublishers.ofString(json)).build();
        for (int attempt = 0; attempt < 10; attempt++) {
            try {
                HttpResponse<String> answer = HTTP.send(request, HttpResponse.BodyHandlers.ofString());
                if (answer.statusCode() == 200) {
                    return answer.body();
                }
                if (!answer.body().contains("\"unavailable\"")) {
                    throw new IllegalStateException(method + " was refused: " + answer.body());
                }
            } catch (IOException starting) { // or another instance takes over
            }
            Thread.sleep(Math.min(100L << attempt, 5000));
        }
        throw new IllegalStateException("the ledger did not answer");
    }

    private static void publish(String order, long cents) throws Exception {
        System.out.println(call("Publish", """
            {"events": [{"eventType": "order.paid", "aggregateType": "ORDER", "aggregateId": "%1$s",
              "payload": {"orderId": "%1$s", "totalCents": %2$d}, "idempotencyKey": "order:%1$s:paid"}]}""".formatted(order, cents)));
    }

    private static final Pattern DELIVERY = Pattern.compile(
        "\"aggregateId\":\"([^\"]*)\".*?\"totalCents\"\\s*:\\s*(\\d+).*?\"consumeToken\":\"([^\"]*)\"", Pattern.DOTALL);

    private static List<Delivery> fetch() throws Exception {
        Matcher found = DELIVERY.matcher(call("Fetch",
            "{\"consumer\": \"PointsConsumer\", \"eventTypes\": [\"order.paid\"], \"max\": 100, \"wait\": \"30s\"}"));
        List<Delivery> deliveries = new ArrayList<>();
        while (found.find()) {
            deliveries.add(new Delivery(found.group(3), found.group(1), Long.parseLong(found.group(2))));
        }
        return deliveries;
    }

    /** Handles deliveries until so many have come; 0 means for ever. The work may be done again where an Ack did not arrive. */
    private static void consume(int most) throws Exception {
        for (int handled = 0; most == 0 || handled < most;) {
            List<String> acks = new ArrayList<>();
            for (Delivery d : fetch()) {
                System.out.println(d.order() + " " + d.cents() / 100);
                acks.add("{\"consumeToken\": \"" + d.token() + "\", \"outcome\": \"SUCCESS\"}");
            }
            if (!acks.isEmpty()) {
                call("Ack", "{\"acks\": [" + String.join(", ", acks) + "]}");
            }
            handled += acks.size();
        }
    }

    public static void main(String[] args) throws Exception {
        if (args[0].equals("publish")) {
            publish(args[1], Long.parseLong(args[2]));
        } else {
            consume(args.length > 1 ? Integer.parseInt(args[1]) : 0);
        }
    }
}
