"""messages.py SERVER SEED COUNT FILE sends random messages that dnspython packs, and parses the replies with dnspython.

FILE is JSON: "questions", a list of objects with name, type, status, records, weight and the range of TTLs, and "denial", the
range of TTLs of the SOA records of denials. A message is one of three kinds:

  known    one of these questions, with random case of letters, flags, EDNS version, payload and options; the reply must
           repeat ID and question, fit into the payload, and have AA and the wanted records with TTLs in the range; a denial
           must have an SOA record; a truncated reply must have the records over TCP
  unknown  a question with a random name and type; the reply must have the code of its zone and opcode, and dnspython must
           parse it and pack it again to an equal message
  broken   a message with random bytes changed, cut or added; with a complete header that has QR=0 it must have a reply that
           dnspython parses, with a code of its header, and otherwise none

Each message has one reply at most, and its ID is not used again before PATIENCE. The program prints the number of messages of
each kind, or the first failure with the message's number. A message depends on the seed and its number only.
"""

import collections
import itertools
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
import dns.rdataclass
import dns.rdatatype

WINDOW = 64  # messages that wait for a reply at once
PATIENCE = 10  # seconds for a reply
LINGER = 0.5  # seconds for second replies to the last messages
HEADER = 12  # bytes
SMALLEST = 512  # bytes of a reply to a query without EDNS

RCODES = {"NXDOMAIN": dns.rcode.NXDOMAIN, "NODATA": dns.rcode.NOERROR, "NOERROR": dns.rcode.NOERROR}
UNASSIGNED = {3, *range(6, 16)}  # opcodes
QUERY, NOTIFY = 0, 4
TRANSFERS = (251, 252)  # types
CLUSTER = dns.name.from_text("cluster.local.")
ZONES = [CLUSTER, dns.name.from_text("in-addr.arpa."), dns.name.from_text("ip6.arpa.")]  # all others are in the root zone, which is signed
# Suffixes of random names, and whether they exist.
SUFFIXES = {"cluster.local.": True, "svc.cluster.local.": True, "shop.svc.cluster.local.": True}
SUFFIXES |= {"in-addr.arpa.": True, "ip6.arpa.": True, "example.com.": False, ".": True}
EXISTING = {dns.name.from_text(text) for text, exists in SUFFIXES.items() if exists}
DELEGATED = dns.name.from_text("se.")
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
    name = dns.name.from_text(rng.choice(list(SUFFIXES)))
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


def wanted_rcode(query):
    """Returns the code of the reply to a query with a random name, or None for a name that has more than one."""
    name, rdtype = query.question[0].name, query.question[0].rdtype
    if query.opcode() not in (QUERY, NOTIFY):
        return dns.rcode.NOTIMP
    if query.edns > 0:
        return dns.rcode.BADVERS
    if rdtype in TRANSFERS:
        return dns.rcode.REFUSED
    if name.is_subdomain(DELEGATED):
        return None
    if len(name.labels) == 2 and name.labels[0].startswith(b"*"):  # CoreDNS's plugin dnssec does not sign the denial
        return None
    signed = query.ednsflags & dns.flags.DO and not any(name.is_subdomain(zone) for zone in ZONES)
    if name in EXISTING or signed:  # plugin dnssec denies a name by NODATA
        return dns.rcode.NOERROR
    return dns.rcode.NXDOMAIN


def broken_rcodes(wire):
    """Returns the codes that the reply to a broken message may have: those of CoreDNS, which checks the header first."""
    opcode, questions = wire[2] >> 3 & 15, struct.unpack("!H", wire[4:6])[0]
    if opcode not in (QUERY, NOTIFY):
        return {dns.rcode.NOTIMP}
    if questions != 1:
        return {dns.rcode.FORMERR}
    if len(wire) == HEADER:
        return {dns.rcode.FORMERR, dns.rcode.SERVFAIL}
    try:
        query = dns.message.from_wire(wire)
    except Exception:  # dnspython has many
        query = None
    # Of records, dnspython and CoreDNS know different types.
    is_plain = query and opcode == QUERY and query.edns <= 0 and not query.options and not any(query.sections[1:])
    if is_plain and query.question[0].rdclass == dns.rdataclass.IN:
        if query.question[0].rdtype in TRANSFERS:
            return {dns.rcode.REFUSED}
        return {dns.rcode.NOERROR, dns.rcode.NXDOMAIN}
    wanted = {dns.rcode.NOERROR, dns.rcode.NXDOMAIN, dns.rcode.FORMERR, dns.rcode.REFUSED, dns.rcode.BADVERS}
    if opcode == NOTIFY:
        wanted.add(dns.rcode.SERVFAIL)  # from nodecache, if cluster DNS drops the NOTIFY
    return wanted


class Message:
    def __init__(self, number, seed, file):
        questions = file["questions"]
        rng = random.Random(f"{seed}/{number}")
        self.number, self.denial, self.wanted, self.tcp = number, file["denial"], None, False
        kind = rng.random()
        if kind < 0.7:
            self.kind, self.wanted = "known", rng.choices(questions, cum_weights=file["weights"])[0]
            name, rdtype = dns.name.from_text(random_case(rng, self.wanted["name"])), self.wanted["type"]
        else:
            self.kind = "unknown" if kind < 0.85 else "broken"
            name, rdtype = random_name(rng), rng.choice((1, 2, 5, 6, 12, 15, 16, 28, 33, 41, 43, 46, 64, 65, 251, 252, 255, rng.randrange(1, 65536)))
            if self.kind == "broken" and rng.random() < 0.7:
                one = rng.choice(questions)
                name, rdtype = dns.name.from_text(one["name"]), one["type"]
        self.query = random_query(rng, name, rdtype)
        self.query.id = self.id = (number * 40503 + file["first"]) % 65536  # each number is used once in 65,536 messages
        if self.kind == "unknown":
            opcode = rng.choice(OPCODES)
            if opcode == NOTIFY and not name.is_subdomain(CLUSTER):
                opcode = 0  # CoreDNS's plugin file drops a NOTIFY that is not of its primary
            self.query.set_opcode(opcode)
        if self.kind == "unknown" and rdtype in TRANSFERS:
            self.tcp = False  # transfers over TCP are sequences of messages
        else:
            self.tcp = self.kind != "broken" and rng.random() < 0.02
        self.wire = self.query.to_wire(max_size=65535)
        if self.kind == "broken":
            self.wire = break_message(rng, self.wire)
        is_query = len(self.wire) >= HEADER and not self.wire[2] & 0x80
        self.has_reply = is_query
        # CoreDNS's plugin file drops a NOTIFY for one of its names.
        self.may_have_reply = is_query and self.kind == "broken" and self.wire[2] >> 3 & 15 == NOTIFY

    def check(self, wire, tcp):
        """Returns whether the reply is complete."""
        opcode, wanted = wire[2] >> 3 & 15, self.wire[2] >> 3 & 15
        # As in CoreDNS, a FORMERR has opcode QUERY.
        require(opcode == wanted or opcode == QUERY and wire[3] & 15 == dns.rcode.FORMERR, f"opcode {opcode}, want {wanted}")
        if opcode in UNASSIGNED:
            # dnspython has no such messages.
            require(wire[2] & 0x80 and wire[3] & 15 == dns.rcode.NOTIMP, f"reply {wire.hex()} to an unassigned opcode")
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
            wanted = broken_rcodes(self.wire)
            texts = [dns.rcode.to_text(code) for code in wanted]
            require(reply.rcode() in wanted, f"{dns.rcode.to_text(reply.rcode())}, want one of {texts}")
            return True
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
        wanted = wanted_rcode(self.query)
        if self.kind == "known" and wanted != dns.rcode.BADVERS:
            wanted = RCODES[self.wanted["status"]]
        require(wanted is None or reply.rcode() == wanted, f"{dns.rcode.to_text(reply.rcode())}, want {dns.rcode.to_text(wanted or 0)}")
        is_answer = wanted in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN)
        require(not is_answer or reply.flags & dns.flags.AA, "no AA")
        if self.kind == "known" and is_answer:
            self.compare(reply)
        return True

    def compare(self, reply):
        records = []
        for rrset in reply.answer:
            for rdata in rrset:
                records.append(f"{dns.rdatatype.to_text(rrset.rdtype)} {rdata.to_text()}".lower())
            check_ttl(rrset, self.wanted["ttl"])
        require(sorted(records) == self.wanted["records"], f"records {sorted(records)[:5]}, want {self.wanted['records'][:5]}")
        if not records:  # RFC 2308
            types = [rrset.rdtype for rrset in reply.authority]
            require(types == [dns.rdatatype.SOA], f"authority section {reply.authority}, want an SOA record")
            # plugin cache does not store replies to queries with some options, and does not change their TTLs.
            check_ttl(reply.authority[0], self.wanted["ttl"] if self.query.options else self.denial)


def check_ttl(rrset, limits):
    require(limits[0] <= rrset.ttl <= limits[1], f"TTL {rrset.ttl} of {rrset}, want {limits}")


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
    def __init__(self, server, seed, count, file):
        self.server, self.seed, self.count, self.file = server, seed, count, file
        self.counts, self.last = collections.Counter(), None
        # Messages by ID, with the time: those that wait for a reply, and those that may have or must not have one.
        self.waiting, self.silent = {}, {}
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.socket.connect((server, 53))

    def all(self):
        for number in range(self.count):
            message = self.last = Message(number, self.seed, self.file)
            self.counts[message.kind] += 1
            if message.tcp:
                self.counts["over TCP"] += 1
                over_tcp(self.server, message)
                continue
            while len(self.waiting) >= WINDOW or not self.is_free(message.id):
                self.receive(0.05)
            if message.has_reply and not message.may_have_reply:
                self.waiting[message.id] = message, time.monotonic()
            else:
                self.counts["NOTIFY" if message.may_have_reply else "no query"] += 1
                self.silent[message.id] = message, time.monotonic()
            self.socket.send(message.wire)
            while self.receive(0):
                pass
        while self.waiting:
            self.receive(0.05)
        while self.receive(LINGER):
            pass

    def is_free(self, key):
        """Returns whether no late reply to an earlier message with this ID can arrive."""
        if key in self.silent and time.monotonic() - self.silent[key][1] > PATIENCE:
            del self.silent[key]
        return key not in self.waiting and key not in self.silent

    def receive(self, seconds):
        """Receives a reply, and returns whether there was one."""
        if not select.select([self.socket], [], [], seconds)[0]:
            for message, sent in self.waiting.values():
                if time.monotonic() - sent > PATIENCE:
                    self.last = message
                    raise Failure("no reply")
            return False
        wire = self.socket.recv(65535)
        require(len(wire) >= HEADER, f"a reply of {len(wire)} bytes")
        key = struct.unpack("!H", wire[:2])[0]
        if key in self.silent:
            message = self.last = self.silent[key][0]
            require(message.may_have_reply, f"reply {wire.hex()} to a message that is no query")
            message.may_have_reply = False  # a second time
        else:
            require(key in self.waiting, f"second reply {wire.hex()}, with ID {key}")
            message = self.last = self.waiting.pop(key)[0]
        if not message.check(wire, False):
            self.counts["truncated"] += 1
            over_tcp(self.server, message)
        return True


def main():
    server, seed, count, path = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    with open(path, encoding="utf-8") as file:
        known = json.load(file)
    for q in known["questions"]:
        q["records"] = sorted(r.lower() for r in q["records"])
    known["weights"] = list(itertools.accumulate(q["weight"] for q in known["questions"]))
    known["first"] = random.Random(seed).randrange(65536)
    run = Run(server, seed, count, known)
    begin = time.monotonic()
    try:
        run.all()
    except (Failure, OSError) as failure:
        m = run.last
        print(f"message {m.number} ({m.kind}) of seed {seed}: {failure!r}\nquery {m.wire.hex()}")
        sys.exit(1)
    print(" ".join(f"{kind.replace(' ', '-')}={number}" for kind, number in sorted(run.counts.items())), f"seconds={time.monotonic() - begin:.0f}")


main()
