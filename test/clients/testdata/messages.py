"""messages.py SERVER SEED COUNT FILE sends random messages that dnspython packs, and parses the replies with dnspython.

FILE has questions with the wanted replies, as JSON: a list of objects with name, type, status and records. A message is one
of three kinds:

  known    one of these questions, with random case of letters, flags, EDNS version, payload and options; the reply must
           repeat ID and question, fit into the payload, and have the wanted records; a truncated one must have them over TCP
  unknown  a question with a random name and type; the reply must be one that dnspython parses and packs again to an equal
           message
  broken   a message with random bytes changed, cut or added; it may have no reply, or one that dnspython parses

It prints the number of messages of each kind, or the first failure with the message's number. A message depends on the seed
and its number only.
"""

import collections
import json
import random
import select
import socket
import struct
import sys
import time

import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype

WINDOW = 64  # messages that wait for a reply at once
PATIENCE = 10  # seconds for a reply
SMALLEST = 512  # bytes of a reply to a query without EDNS

RCODES = {"NXDOMAIN": dns.rcode.NXDOMAIN, "NODATA": dns.rcode.NOERROR, "NOERROR": dns.rcode.NOERROR}
UNASSIGNED = {3, *range(6, 16)}  # opcodes
NOTIFY = 4
CLUSTER = dns.name.from_text("cluster.local.")
OPCODES = [0] * 30 + [1, 2, 3, 4, 5, 15]


class Failure(Exception):
    pass


def require(condition, text):
    if not condition:
        raise Failure(text)


def random_case(rng, name):
    return "".join(rng.choice((c.upper(), c.lower())) for c in name)


def random_options(rng):
    options = []
    for _ in range(rng.choice((0, 0, 1, 2))):
        kind = rng.choice((3, 10, 12, 65001, rng.randrange(100, 65300)))  # below 100, others have a form that random data breaks
        size = {3: 0, 10: 8}.get(kind, rng.randrange(0, 40))
        options.append(dns.edns.GenericOption(kind, rng.randbytes(size)))
    return options


def random_query(rng, name, rdtype):
    query = dns.message.make_query(name, rdtype)
    query.id = rng.randrange(65536)
    query.flags = 0
    for flag in (dns.flags.RD, dns.flags.RD, dns.flags.AD, dns.flags.CD):
        if rng.random() < 0.5:
            query.flags |= flag
    if rng.random() < 0.7:
        query.use_edns(
            edns=rng.choice((0,) * 40 + (1, 255)),
            ednsflags=dns.flags.DO if rng.random() < 0.3 else 0,
            payload=rng.choice((0, 512, 1232, 1400, 4096, 65535, rng.randrange(65536))),
            options=random_options(rng),
        )
    return query


def random_name(rng):
    labels = [rng.randbytes(rng.choice((1, 2, 5, 63))) for _ in range(rng.randrange(0, 6))]
    suffix = rng.choice(("cluster.local.", "svc.cluster.local.", "shop.svc.cluster.local.", "in-addr.arpa.", "ip6.arpa.", "example.com.", "."))
    name = dns.name.from_text(suffix)
    for label in labels:
        try:
            name = dns.name.Name((label,) + name.labels)
        except dns.name.NameTooLong:
            break
    return name


def break_message(rng, wire):
    """Changes bytes after the ID, which has to identify the reply."""
    wire = bytearray(wire)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        action = rng.randrange(4)
        at = rng.randrange(2, max(3, len(wire)))
        if action == 0 and at < len(wire):
            wire[at] = rng.randrange(256)
        elif action == 1 and at < len(wire):
            wire[at] ^= 1 << rng.randrange(8)
        elif action == 2:
            del wire[at:]
        else:
            wire[at:at] = rng.randbytes(rng.randrange(1, 20))
    return bytes(wire)


class Message:
    def __init__(self, number, seed, questions):
        rng = random.Random(f"{seed}/{number}")
        self.number, self.wanted, self.tcp = number, None, False
        kind = rng.random()
        if kind < 0.7:
            self.kind, self.wanted = "known", rng.choices(questions, [q["weight"] for q in questions])[0]
            name, rdtype = dns.name.from_text(random_case(rng, self.wanted["name"])), self.wanted["type"]
        else:
            self.kind = "unknown" if kind < 0.85 else "broken"
            name, rdtype = random_name(rng), rng.choice((1, 2, 5, 6, 12, 15, 16, 28, 33, 41, 43, 46, 64, 65, 252, 255, rng.randrange(1, 65536)))
            if self.kind == "broken" and rng.random() < 0.7:
                one = rng.choice(questions)
                name, rdtype = dns.name.from_text(one["name"]), one["type"]
        self.query = random_query(rng, name, rdtype)
        if self.kind == "unknown":
            opcode = rng.choice(OPCODES)
            if opcode == NOTIFY and not name.is_subdomain(CLUSTER):
                opcode = 0  # CoreDNS's plugin file drops a NOTIFY that is not of its primary
            self.query.set_opcode(opcode)
        if self.kind == "unknown" and rdtype in (251, 252):
            self.tcp = False  # transfers over TCP are sequences of messages
        else:
            self.tcp = self.kind != "broken" and rng.random() < 0.02
        self.wire = self.query.to_wire(max_size=65535)
        if self.kind == "broken":
            self.wire = break_message(rng, self.wire)
        self.id = struct.unpack("!H", self.wire[:2])[0]
        self.may_be_lost = self.kind == "broken"

    def check(self, wire, tcp):
        """Returns whether the reply is complete."""
        if wire[2] >> 3 & 15 in UNASSIGNED:
            # dnspython has no such messages.
            require(wire[2] & 0x80 and wire[3] & 15 in (dns.rcode.FORMERR, dns.rcode.NOTIMP), f"reply {wire.hex()} to an unassigned opcode")
            return True
        try:
            reply = dns.message.from_wire(wire)
        except Exception as error:
            raise Failure(f"dnspython does not parse the reply {wire.hex()}: {error!r}") from error
        require(reply.flags & dns.flags.QR, "the reply is a query")
        require(reply.id == self.id, f"ID {reply.id}, want {self.id}")
        if self.kind != "known" or self.number % 8 == 0:  # most replies to known questions are equal
            again = dns.message.from_wire(reply.to_wire(max_size=65535))
            require(sections(again) == sections(reply), f"packed again, the reply differs: {reply} and {again}")
        if self.kind == "broken":
            return True
        require(reply.opcode() == self.query.opcode(), f"opcode {reply.opcode()}")
        question = self.query.to_wire()[12:]
        question = question[: question_size(question)]
        if reply.question:
            require(wire[12 : 12 + len(question)] == question, f"the question differs: {wire.hex()}")
        has_edns = self.query.edns >= 0
        if self.kind == "known":
            require(reply.question, "no question")
            require((reply.edns >= 0) == has_edns, f"EDNS {reply.edns} for EDNS {self.query.edns}")
        limit = 65535 if tcp else max(SMALLEST, self.query.payload if has_edns else 0)
        require(len(wire) <= limit, f"{len(wire)} bytes, and the query permits {limit}")
        if reply.flags & dns.flags.TC:
            require(not tcp, "truncated over TCP")
            return False
        if self.kind == "known":
            self.compare(reply)
        return True

    def compare(self, reply):
        if self.query.edns > 0:
            require(reply.rcode() == dns.rcode.BADVERS, f"{dns.rcode.to_text(reply.rcode())} for EDNS version {self.query.edns}")
            return
        records = []
        for rrset in reply.answer:
            for rdata in rrset:
                records.append(f"{dns.rdatatype.to_text(rrset.rdtype)} {rdata.to_text()}".lower())
        require(reply.rcode() == RCODES[self.wanted["status"]], f"{dns.rcode.to_text(reply.rcode())}, want {self.wanted['status']}")
        require(sorted(records) == self.wanted["records"], f"records {sorted(records)[:5]}, want {self.wanted['records'][:5]}")


def question_size(wire):
    at = 0
    while wire[at]:
        at += 1 + wire[at]
    return at + 5


def sections(message):
    parts = []
    for section in message.sections[1:]:
        parts.append(collections.Counter((str(s.name).lower(), s.rdtype, r.to_text().lower()) for s in section for r in s))
    return message.rcode(), parts


def over_tcp(server, message):
    with socket.create_connection((server, 53), timeout=PATIENCE) as s:
        s.sendall(struct.pack("!H", len(message.wire)) + message.wire)
        text = b""
        while len(text) < 2 or len(text) < 2 + struct.unpack("!H", text[:2])[0]:
            part = s.recv(65535)
            require(part, "the server closed the connection")
            text += part
    require(message.check(text[2:], True), "truncated over TCP")


class Run:
    def __init__(self, server, seed, count, questions):
        self.server, self.seed, self.count, self.questions = server, seed, count, questions
        self.waiting, self.counts, self.last = {}, collections.Counter(), None
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.socket.connect((server, 53))

    def all(self):
        for number in range(self.count):
            message = self.last = Message(number, self.seed, self.questions)
            self.counts[message.kind] += 1
            if message.tcp:
                self.counts["over TCP"] += 1
                over_tcp(self.server, message)
                continue
            while len(self.waiting) >= WINDOW or message.id in self.waiting:
                self.receive()
            self.waiting[message.id] = message, time.monotonic()
            self.socket.send(message.wire)
            while select.select([self.socket], [], [], 0)[0]:
                self.receive()
        while self.waiting:
            self.receive()

    def receive(self):
        """Receives a reply, or gives up messages that may have none."""
        if not select.select([self.socket], [], [], 0.05)[0]:
            now = time.monotonic()
            for key, (message, sent) in list(self.waiting.items()):
                if message.may_be_lost and now - sent > 0.05:
                    self.counts["broken without reply"] += 1
                    del self.waiting[key]
                elif now - sent > PATIENCE:
                    self.last = message
                    raise Failure("no reply")
            return
        wire = self.socket.recv(65535)
        require(len(wire) >= 12, f"a reply of {len(wire)} bytes")
        key = struct.unpack("!H", wire[:2])[0]
        if key not in self.waiting:
            return  # late reply to a broken message
        message, _ = self.waiting.pop(key)
        self.last = message
        if not message.check(wire, False):
            self.counts["truncated"] += 1
            over_tcp(self.server, message)


def main():
    server, seed, count, path = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    with open(path, encoding="utf-8") as file:
        questions = json.load(file)
    for q in questions:
        q["weight"] = 0.01 if len(q["records"]) > 10 else 1
        q["records"] = sorted(r.lower() for r in q["records"])
    run = Run(server, seed, count, questions)
    begin = time.monotonic()
    try:
        run.all()
    except (Failure, OSError) as failure:
        m = run.last
        print(f"message {m.number} ({m.kind}) of seed {seed}: {failure!r}\nquery {m.wire.hex()}")
        sys.exit(1)
    print(" ".join(f"{kind.replace(' ', '-')}={number}" for kind, number in sorted(run.counts.items())), f"seconds={time.monotonic() - begin:.0f}")


main()
