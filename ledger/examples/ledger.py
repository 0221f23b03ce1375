"""A producer and a consumer of the ledger, in nothing but Python's standard library.

  LEDGER=http://127.0.0.1:8085 TOKEN=shop-token python3 ledger.py publish 7 4200
  LEDGER=http://127.0.0.1:8085 TOKEN=points-token python3 ledger.py consume
"""
import json
import os
import sys
import time
import urllib.error
import urllib.request


class Refused(Exception):
    """The ledger refused a call: its code and message say why."""

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code = code


def call(method, request, timeout=70):
    """Calls the ledger, again while it cannot be reached."""
    body = json.dumps(request).encode()
    for attempt in range(10):
        http = urllib.request.Request(
            f"{os.environ['LEDGER']}/bluecone.ledger.v1.Ledger/{method}", data=body,
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['TOKEN']}"})
        try:
            with urllib.request.urlopen(http, timeout=timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as err:
            said = json.load(err)
            if said.get("code") != "unavailable":
                raise Refused(said.get("code"), said.get("message"))
        except urllib.error.URLError:
            pass  # it is starting, or another instance takes over
        time.sleep(min(2 ** attempt / 10, 5))
    raise Refused("unavailable", "the ledger did not answer")


def publish(order, cents):
    """Publishes that an order was paid. Repeated, it changes nothing: the key says which fact it is."""
    got = call("Publish", {"events": [{
        "eventType": "order.paid", "aggregateType": "ORDER", "aggregateId": order,
        "payload": {"orderId": order, "totalCents": cents}, "idempotencyKey": f"order:{order}:paid"}]})
    return got["eventIds"][0]


def handle(event):
    """Does the work. It may be called again for an event whose Ack did not arrive, so it must bear that."""
    print(event["aggregateId"], event["payload"]["totalCents"] // 100, flush=True)


def outcome_of(event):
    try:
        handle(event)
        return {"outcome": "SUCCESS"}
    except (KeyError, TypeError) as err:  # it will never succeed
        return {"outcome": "PERMANENT", "error": repr(err)}
    except Exception as err:  # it comes again, later each time
        return {"outcome": "FAILED", "error": repr(err)}


def consume(most):
    """Handles deliveries until so many have come; 0 means for ever."""
    handled = 0
    while most == 0 or handled < most:
        got = call("Fetch", {"consumer": "PointsConsumer", "eventTypes": ["order.paid"], "max": 100, "wait": "30s"})
        acks = [{"consumeToken": d["consumeToken"], **outcome_of(d["event"])} for d in got["deliveries"]]
        if acks:
            for state in call("Ack", {"acks": acks})["states"]:
                if state["error"] is not None:
                    print(state["error"], file=sys.stderr)  # the lease was lost: the delivery comes again
        handled += len(acks)


if __name__ == "__main__":
    if sys.argv[1] == "publish":
        print(publish(sys.argv[2], int(sys.argv[3])))
    else:
        consume(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
