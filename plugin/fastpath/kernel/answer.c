//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Answers DNS queries at the ingress of an interface from answers that nodecache has stored in the maps below. It creates no
// answer: it repeats stored ones as plugin fastpath does, with the client's ID, flags, question and OPT record, with aged TTLs
// and with addresses in random order. Every other packet passes unchanged. README.md describes the maps.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// The limits; record_linux.go has the same ones.
#define MAX_NAME      128     // bytes of a name in wire form
#define SHORT_NAME    64      // most names have no more bytes
#define MAX_ANSWER    1232    // bytes of a reply, DNS flag day 2020
#define MAX_OPTIONS   64      // bytes of EDNS options in a reply
#define MAX_TTLS      96      // records of an answer
#define MAX_OWNERS    32      // owner names that are copies of the question
#define MAX_ADDRESSES 64      // addresses in random order
#define MAX_RECORD    4096    // bytes of a record
#define GRANULE       128     // bytes; records begin at multiples
#define ARENA         (2 << 20)
#define SLOTS         16384   // of the index, four for each entry
#define PROBES        8       // slots that may have a key's entry
#define MAX_LISTENERS 32
#define MAX_SESSIONS  64
#define MAX_CLIENTS   1024
#define MAX_PORTS     4

#define HEADER   12
#define QUESTION 4  // type and class
#define OPT      11 // an OPT record without options
#define SLACK    64 // bytes that are copied at a time

#define LOOPBACK 1 // index of lo

#define PASS (-1) // TCX_NEXT, TC_ACT_UNSPEC: to the next program, then to the network stack

char LICENSE[] SEC("license") = "Dual BSD/GPL";

// Times are those of CLOCK_MONOTONIC in nanoseconds.

struct listener_key {
	__u32 address[4]; // IPv4 addresses are mapped, RFC 4291 section 2.5.5.2
	__be16 port;
	__u16 zero;
};

struct session {
	__u64 until; // the session vouches for its answers until then
	__u64 lapsed;
};

// control is written by nodecache.
struct control {
	__u64 until[MAX_LISTENERS];  // lease of each listener
	__u8 searches[MAX_LISTENERS]; // names are expanded by the search list of the client
	__u64 clients_until;         // end of the search lists of clients, which nodecache verifies again and again
	struct session sessions[MAX_SESSIONS];
	__u64 seed; // of hashes
	__be16 ports[MAX_PORTS];
};

struct client_key {
	__u32 address[4];
};

struct client {
	__u32 address[4]; // the key again, see find
	__u32 list;
};

struct key {
	__u8 name[MAX_NAME]; // wire form, lower case; zeros up to SHORT_NAME, or MAX_NAME
	__u32 list;          // search list of the client, 0 if the name is not expanded
	__be16 type;
	__u8 flags; // FLAG_DO, FLAG_CD
	__u8 listener;
};

#define FLAG_DO 1
#define FLAG_CD 2

// place is where the record of a key is.
struct place {
	__u32 granule; // in the arena
	__u32 version; // of the record
};

// index has the places. A key's slot is one of PROBES, the first of which is at the low bits of the key's hash. From the lowest bit
// on, a slot has the version, the granule and the highest bits of the hash; 0 is an empty one.
#define VERSION_BITS 26
#define GRANULE_BITS 14
#define TAG_SHIFT    (VERSION_BITS + GRANULE_BITS)
struct index {
	__u64 slots[SLOTS + PROBES];
};

// form is an answer in wire form. Offsets of data are from the start of the record.
struct form {
	__u16 at;     // of the answer
	__u16 len;    // 0 if there is no such form
	__u16 excess; // by which CoreDNS overestimates the length
	__u16 ttls_at, ttls;     // offsets of TTLs in the answer
	__u16 owners_at, owners; // offsets of copies of the question's name in the answer
	__u16 first, stride, count, size; // addresses in random order; count is 0 without
	__u16 zero;
};

// record is an answer with its validity. Only version, expires and the counters change while it is served.
struct record {
	__u32 version; // 0 if it is not served
	__u8 name_len;
	__u8 flags;
	__u16 session; // that vouches for the answer, from 1; 0 without one
	__u64 until;   // end without a session that vouches
	__u64 expires; // end of the TTL, 0 without one
	__u64 stored;
	__u64 vouched_until; // end with a session, 0 for none
	__u64 limit;         // end of the parts without a session, 0 without such parts
	__u16 options_at, options;
	__u32 list; // of the key, as the next ones
	__be16 type;
	__u8 key_flags, listener;
	__u32 zero;
	struct form forms[2]; // without and with compression of names
	__u64 counts[8];      // answers: COUNT_...
};

#define RECORD_ANY_CASE 1 // right for questions with upper-case letters
#define RECORD_SHUFFLE  2
#define RECORD_FIXED    4 // TTLs are not decremented

#define COUNT_EDNS   1
#define COUNT_IPV6   2
#define COUNT_BEYOND 4 // the TTL has passed, a session vouches

// reason is a counter: of the answers, or of the packets that pass. statistics_linux.go has the same ones.
enum reason {
	ANSWERED,
	NANOSECONDS, // of ANSWERED in all
	NO_ENTRY,
	NO_LEASE,
	EXPIRED, // or invalidated, or to be prefetched
	QUERY,   // another form of query
	LENGTH,  // the answer is too long for the client
	CASE,
	PACKET, // fragments, IP options, wrong lengths or checksums
	CHECKSUM,
	REASONS,
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct control);
} control SEC(".maps");

// arena has records, each at a multiple of GRANULE.
struct arena {
	union {
		struct record record; // the first
		__u8 bytes[ARENA];
	};
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct arena);
} arena SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_LISTENERS);
	__type(key, struct listener_key);
	__type(value, __u32);
} listeners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CLIENTS);
	__type(key, struct client_key);
	__type(value, struct client);
} clients SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct index);
} places SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

#define MAX_QUERY (HEADER + MAX_NAME + QUESTION + OPT)

// Lengths of the headers before the message. The program copies them to its memory and back: before Linux 6.6, the verifier
// does not permit comparing the pointers to the packet without CAP_PERFMON.
#define IPV4_HEADS (sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr))
#define IPV6_HEADS (sizeof(struct ethhdr) + sizeof(struct ipv6hdr) + sizeof(struct udphdr))
#define HEADS      64 // the longest ones, and a multiple of 8

// packet is the packet of a query.
struct packet {
	__u32 valid;
	__u32 source[4], destination[4];
	__u32 dns; // offset of the message
	__u32 len; // of the message
	__u16 source_port, destination_port; // in network order
	__u16 checksum;
	__u16 ipv6;
};

// question is a query's question and flags.
struct question {
	__u64 upper; // not 0 if the name has upper-case letters
	__u32 name_len;
	__u32 limit; // of the reply in bytes
	__u16 udp_size;
	__u16 zero;
	__u8 edns, dnssec_ok;
};

// reply is how the reply is made.
struct reply {
	struct place at; // of the record
	__u32 form;
	__u32 len;  // of the answer
	__u32 size; // of the reply
	__u32 options;
	__u32 age, max; // of TTLs
	__u32 left;     // addresses to permute
	__u32 counter;
	__u32 complete; // the checksum of the query is complete, see check_sum
};

// work is the state of the query on a processor, between the functions below.
struct work {
	__u32 scratch, zeros;
	__u64 now;  // when the packet arrived
	__u64 hash; // of the name
	__u8 query[256];
	__u8 heads[HEADS]; // the headers of the packet end here, and the message of the reply begins
	__u8 bytes[2048];  // of the reply
	__u64 masks[MAX_NAME / 8]; // of the bytes of the name
	struct key key;
	struct packet packet;
	struct question question;
	struct reply reply;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct work);
} works SEC(".maps");

static __always_inline struct work *work_of(void) {
	__u32 zero = 0;
	return bpf_map_lookup_elem(&works, &zero);
}

static __always_inline struct control *control_of(void) {
	__u32 zero = 0;
	return bpf_map_lookup_elem(&control, &zero);
}

// record_at returns the record at a granule, NULL beyond the last one.
static __always_inline struct record *record_at(__u32 granule) {
	__u32 zero = 0;
	struct arena *all = bpf_map_lookup_elem(&arena, &zero);
	if (!all || granule > (ARENA - MAX_RECORD) / GRANULE)
		return 0;
	return (struct record *)(all->bytes + (__u64)granule * GRANULE);
}

// The verifier examines each function that is not static once, and not in every state of its callers.
#define STEP __attribute__((noinline)) int

static __always_inline void count(enum reason reason, __u64 n) {
	__u32 key = reason;
	__u64 *c = bpf_map_lookup_elem(&counters, &key);
	if (c)
		*c += n;
}

// Loads and stores of a word at any address: the processors of nearside have them, and the verifier permits them.
#define WORD(type, at) (*(volatile type *)(at))

static __always_inline __u16 read16(const __u8 *b) { return (__u16)b[0] << 8 | b[1]; }

static __always_inline void write16(__u8 *b, __u16 v) {
	b[0] = v >> 8;
	b[1] = v;
}

static __always_inline __u16 fold(__u64 sum) {
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

// pseudo returns the sum of the pseudo header of UDP with a message of len bytes. It is the same for the reply.
static __always_inline __u64 pseudo(const struct packet *p, __u32 len) {
	__u64 sum = bpf_htons(len + sizeof(struct udphdr)) + bpf_htons(IPPROTO_UDP);
	if (!p->ipv6)
		return sum + p->source[3] + p->destination[3];
#pragma unroll
	for (int i = 0; i < 4; i++)
		sum += (__u64)p->source[i] + p->destination[i];
	return sum;
}

// sum returns the sum of a message that is followed by zeros.
static __always_inline __u64 sum(__u8 *b, __u32 len) {
	__u64 total = 0;
#pragma unroll
	for (int at = 0; at < MAX_ANSWER; at += 512) {
		__u32 rest = len > at ? len - at : 0;
		if (rest > 512)
			rest = 512;
		rest = (rest + 3) & 0x3fc;
		if (rest == 0 || rest > 512)
			break;
		asm volatile("%0 &= 0x3fc" : "+r"(rest));
		total += (__u32)bpf_csum_diff(0, 0, (__be32 *)(b + at), rest, 0);
	}
	return total;
}

// DONE is the result of a step after which the next one follows; any other is the result of the program, or a reason to pass.
#define DONE REASONS

// parse_packet parses the headers, and returns the number of the listener behind DONE. It returns PASS for a packet to none.
STEP parse_packet(struct __sk_buff *skb) {
	struct control *c = control_of();
	struct work *w = work_of();
	if (!c || !w)
		return PASS;
	struct packet *p = &w->packet;
	struct udphdr *udp = (void *)(w->heads + HEADS - sizeof(*udp));
	__u32 total;
	// A packet to a bridge is one to another host (3) for the port on which it arrives.
	if (skb->vlan_present || (skb->pkt_type != 0 && skb->pkt_type != 3))
		return PASS;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct ethhdr *eth = (void *)(w->heads + HEADS - IPV4_HEADS);
		struct iphdr *ip = (void *)(eth + 1);
		if (skb->len < IPV4_HEADS + HEADER || bpf_skb_load_bytes(skb, 0, eth, IPV4_HEADS))
			return PASS;
		if (eth->h_proto != bpf_htons(ETH_P_IP) || ip->version != 4 || ip->protocol != IPPROTO_UDP)
			return PASS;
		p->source[0] = p->source[1] = p->destination[0] = p->destination[1] = 0;
		p->source[2] = p->destination[2] = bpf_htonl(0xffff);
		p->source[3] = ip->saddr;
		p->destination[3] = ip->daddr;
		p->ipv6 = 0;
		p->dns = IPV4_HEADS;
		total = bpf_ntohs(ip->tot_len) - sizeof(*ip);
		__u8 first = bpf_ntohl(ip->saddr) >> 24;
		int loopback = first == 127;
		__u64 header = 0;
		__u16 *words = (void *)ip;
#pragma unroll
		for (int i = 0; i < sizeof(*ip) / 2; i++)
			header += words[i];
		p->valid = ip->ihl == 5 && !(ip->frag_off & bpf_htons(0x3fff)) && bpf_ntohs(ip->tot_len) == skb->len - sizeof(*eth) &&
			fold(header) == 0xffff && first != 0 && first < 224 && (!loopback || skb->ifindex == LOOPBACK);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ethhdr *eth = (void *)(w->heads + HEADS - IPV6_HEADS);
		struct ipv6hdr *ip = (void *)(eth + 1);
		if (skb->len < IPV6_HEADS + HEADER || bpf_skb_load_bytes(skb, 0, eth, IPV6_HEADS))
			return PASS;
		if (eth->h_proto != bpf_htons(ETH_P_IPV6) || ip->version != 6 || ip->nexthdr != IPPROTO_UDP)
			return PASS;
		__builtin_memcpy(p->source, &ip->saddr, 16);
		__builtin_memcpy(p->destination, &ip->daddr, 16);
		if (!p->destination[0] && !p->destination[1] && p->destination[2] == bpf_htonl(0xffff))
			return PASS; // a mapped address is the key of an IPv4 address
		p->ipv6 = 1;
		p->dns = IPV6_HEADS;
		total = bpf_ntohs(ip->payload_len);
		p->valid = total == skb->len - sizeof(*eth) - sizeof(*ip) && ip->saddr.s6_addr[0] != 0xff &&
			((p->source[0] | p->source[1] | p->source[2]) != 0 ||
			 (p->source[3] != 0 && (p->source[3] != bpf_htonl(1) || skb->ifindex == LOOPBACK)));
	} else {
		return PASS;
	}
	p->source_port = udp->source;
	p->destination_port = udp->dest;
	p->checksum = udp->check;
	if (udp->dest != c->ports[0] && udp->dest != c->ports[1] && udp->dest != c->ports[2] && udp->dest != c->ports[3])
		return PASS;
	struct listener_key key = {.port = udp->dest};
	__builtin_memcpy(key.address, p->destination, 16);
	__u32 udp_len = bpf_ntohs(udp->len);
	__u32 *l = bpf_map_lookup_elem(&listeners, &key);
	if (!l || *l >= MAX_LISTENERS)
		return PASS;
	if (!p->valid || udp_len != total || skb->gso_size || p->source_port == 0)
		return PACKET;
	__u32 len = udp_len - sizeof(*udp);
	if (len < HEADER + 1 + QUESTION || len > MAX_QUERY)
		return QUERY;
	p->len = len;
	w->key.listener = *l;
	w->now = bpf_ktime_get_ns();
	return w->now < c->until[*l & (MAX_LISTENERS - 1)] ? DONE : NO_LEASE;
}

// check_sum compares the checksum of the query with its bytes. The sender has left the sum of the pseudo header in the field if a
// device is to complete the checksum (CHECKSUM_PARTIAL of struct sk_buff). Both may be true, of one query in 65,536, which
// passes.
STEP check_sum(void) {
	struct work *w = work_of();
	if (!w)
		return PASS;
	struct packet *p = &w->packet;
	__u32 len = p->len;
	if (len > MAX_QUERY || (p->checksum == 0 && p->ipv6))
		return CHECKSUM;
	__u64 head = pseudo(p, len);
	__u64 whole = head + p->source_port + p->destination_port + bpf_htons(len + sizeof(struct udphdr)) + p->checksum + sum(w->query, len);
	int complete = p->checksum == 0 || fold(whole) == 0xffff, partial = p->checksum == fold(head);
	w->reply.complete = complete;
	return complete == partial ? CHECKSUM : DONE;
}

// mask_of returns a mask of the first bytes of a word. It has no branches, of which the verifier would examine each combination.
static __always_inline __u64 mask_of(__s64 bytes) {
	__s64 before = bytes - 8, none = bytes - 1;
	asm volatile("%0 s>>= 63\n%1 s>>= 63" : "+r"(before), "+r"(none));
	return ~before | (~none & ((1ULL << (8 * bytes & 63)) - 1));
}

// mix returns a hash of a hash and a word.
static __always_inline __u64 mix(__u64 hash, __u64 word) {
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 32;
}

// parse_word sets the mask and the lower-case letters of the i-th word of the name, and returns the hash with the word.
static __always_inline __u64 parse_word(struct work *w, int i, __u32 name_len, __u64 hash, __u64 *any) {
	__u64 mask = mask_of((__s64)name_len - 8 * i);
	__u64 x = WORD(__u64, w->query + HEADER + 8 * i) & mask;
	__u64 low = x & 0x7f7f7f7f7f7f7f7fULL;
	__u64 upper = ~x & 0x8080808080808080ULL & ((low + 0x3f3f3f3f3f3f3f3fULL) ^ (low + 0x2525252525252525ULL));
	*any |= upper;
	x |= upper >> 2;
	w->masks[i] = mask;
	WORD(__u64, w->key.name + 8 * i) = x;
	return mix(hash, x);
}

// parse_query parses the message and sets the key, except the list and the listener.
STEP parse_query(void) {
	struct control *c = control_of();
	struct work *w = work_of();
	if (!c || !w)
		return PASS;
	struct question *q = &w->question;
	__u8 *b = w->query;
	__u32 len = w->packet.len;
	if (len < HEADER + 1 + QUESTION || len > MAX_QUERY)
		return QUERY;
	if (b[2] & ~0x01 || b[3] & ~0x30)
		return QUERY;
	if (b[4] || b[5] != 1 || b[6] || b[7] || b[8] || b[9] || b[10] || b[11] > 1)
		return QUERY;
	q->edns = b[11];
	q->dnssec_ok = 0;
	q->udp_size = 0;
	q->limit = 512;
	if (b[11]) {
		if (len < HEADER + 1 + QUESTION + OPT)
			return QUERY;
		len -= OPT;
		__u8 *opt = b + len;
		if (opt[0] || read16(opt + 1) != 41 || opt[5] || opt[6] || opt[7] & ~0x80 || opt[8] || opt[9] || opt[10])
			return QUERY;
		q->udp_size = read16(opt + 3);
		if (q->udp_size > 512)
			q->limit = q->udp_size;
		q->dnssec_ok = opt[7] >> 7;
	}
	WORD(__u32, &w->scratch) = len - QUESTION;
	__u32 at = WORD(__u32, &w->scratch);
	__u32 name_len = at - HEADER;
	if (at < HEADER + 1 || at > HEADER + MAX_NAME)
		return QUERY;
	q->name_len = name_len;
	__u8 *end = b + at;
	if (read16(end + 2) != 1)
		return QUERY;
	w->key.type = bpf_htons(read16(end));
	w->key.flags = (q->dnssec_ok ? FLAG_DO : 0) | (b[3] & 0x10 ? FLAG_CD : 0);
	w->key.list = 0;
	__u64 any = 0, hash = c->seed;
#pragma unroll
	for (int i = 0; i < SHORT_NAME / 8; i++)
		hash = parse_word(w, i, name_len, hash, &any);
	if (name_len > SHORT_NAME) {
#pragma unroll
		for (int i = SHORT_NAME / 8; i < MAX_NAME / 8; i++)
			hash = parse_word(w, i, name_len, hash, &any);
	}
	q->upper = any;
	w->hash = hash;
	return DONE;
}

// AT bounds an offset of data that was read from a record: encode in record_linux.go places all data below.
#define AT(offset) ((__u32)(offset) & (MAX_RECORD / 2 - 1))

// LAST is the last offset in a reply at which n bytes can be changed.
#define LAST(n) (sizeof(((struct work *)0)->bytes) - (n))

// Repetitions of a macro with numbers from i. Without CAP_PERFMON, the verifier follows paths on which a processor speculates
// that a condition has another result; it does not know the counter of a loop there, so that no loop ends.
#define TIMES4(macro, i)  macro(i) macro(i + 1) macro(i + 2) macro(i + 3)
#define TIMES16(macro, i) TIMES4(macro, i) TIMES4(macro, i + 4) TIMES4(macro, i + 8) TIMES4(macro, i + 12)
#define TIMES32(macro, i) TIMES16(macro, i) TIMES16(macro, i + 16)

// answer is the answer that is copied to the reply.
struct answer {
	struct work *work;
	const __u8 *record;
	const struct form *form;
};

static __always_inline int answer_of(struct answer *a) {
	struct work *w = work_of();
	if (!w)
		return 0;
	struct record *r = record_at(w->reply.at.granule);
	if (!r)
		return 0;
	a->work = w;
	a->record = (const __u8 *)r;
	a->form = &r->forms[WORD(__u32, &w->reply.form) & 1];
	return 1;
}

// copy_answer copies the answer, and more bytes, to the reply.
STEP copy_answer(void) {
	struct answer a;
	if (!answer_of(&a))
		return PASS;
	__u32 len = a.form->len;
	const __u8 *from = a.record + AT(a.form->at);
	__u8 *to = a.work->bytes;
#define WORD_OF(at) WORD(__u64, to + (at)) = WORD(__u64, from + (at));
#define PIECE(i) \
	if (SLACK * (i) >= len) \
		return DONE; \
	WORD_OF(SLACK * (i)) WORD_OF(SLACK * (i) + 8) WORD_OF(SLACK * (i) + 16) WORD_OF(SLACK * (i) + 24) \
	WORD_OF(SLACK * (i) + 32) WORD_OF(SLACK * (i) + 40) WORD_OF(SLACK * (i) + 48) WORD_OF(SLACK * (i) + 56)
	TIMES16(PIECE, 0)
	TIMES4(PIECE, 16)
	return DONE;
}

// set_ttl subtracts the age from the TTL at an offset of the reply, and limits the result to max, unless that is 0.
STEP set_ttl(__u32 at) {
	struct work *w = work_of();
	if (!w || at > LAST(4))
		return PASS;
	__u32 ttl = bpf_ntohl(WORD(__u32, w->bytes + at)), age = w->reply.age, max = w->reply.max;
	ttl -= ttl < age ? ttl : age;
	if (max && ttl > max)
		ttl = max;
	WORD(__u32, w->bytes + at) = bpf_htonl(ttl);
	return DONE;
}

STEP set_ttls(void) {
	struct answer a;
	if (!answer_of(&a))
		return PASS;
	const __u8 *offsets = a.record + AT(a.form->ttls_at);
	__u32 n = a.form->ttls;
#define TTL(i) \
	if ((i) >= n) \
		return DONE; \
	set_ttl(WORD(__u16, offsets + 2 * (i)));
	TIMES32(TTL, 0)
	TIMES32(TTL, 32)
	TIMES32(TTL, 64)
	return DONE;
}

// set_word copies the letter case of the i-th word of the question's name to a name.
static __always_inline void set_word(struct work *w, __u8 *to, int i) {
	__u64 mask = w->masks[i];
	WORD(__u64, to + 8 * i) = (WORD(__u64, to + 8 * i) & ~mask) | (WORD(__u64, w->query + HEADER + 8 * i) & mask);
}

// set_name copies the letter case of the question's name to the same name in the reply.
STEP set_name(__u32 at) {
	struct work *w = work_of();
	if (!w || at > LAST(MAX_NAME))
		return PASS;
	__u8 *to = w->bytes + at;
#pragma unroll
	for (int i = 0; i < SHORT_NAME / 8; i++)
		set_word(w, to, i);
	if (w->question.name_len > SHORT_NAME) {
#pragma unroll
		for (int i = SHORT_NAME / 8; i < MAX_NAME / 8; i++)
			set_word(w, to, i);
	}
	return DONE;
}

STEP set_names(void) {
	struct answer a;
	if (!answer_of(&a))
		return PASS;
	set_name(HEADER);
	const __u8 *offsets = a.record + AT(a.form->owners_at);
	__u32 n = a.form->owners;
#define OWNER(i) \
	if ((i) >= n) \
		return DONE; \
	set_name(WORD(__u16, offsets + 2 * (i)));
	TIMES32(OWNER, 0)
	return DONE;
}

// exchange exchanges the last address of those that are left with a random one of them, which are one fewer then.
STEP exchange(void) {
	struct answer a;
	if (!answer_of(&a))
		return PASS;
	__u32 n = a.work->reply.left, first = a.form->first, stride = a.form->stride;
	if (n == 0 || n > MAX_ADDRESSES)
		return PASS;
	a.work->reply.left = n - 1;
	__u32 j = (bpf_get_prandom_u32() & 0xffffff) * n >> 24;
	__u32 at = first + (n - 1) * stride, other = first + j * stride;
	if (at > LAST(16) || other > LAST(16))
		return PASS;
	__u8 *x = a.work->bytes + at, *y = a.work->bytes + other;
	if (a.form->size == 4) {
		__u32 spare = WORD(__u32, x);
		WORD(__u32, x) = WORD(__u32, y);
		WORD(__u32, y) = spare;
	} else {
		__u64 low = WORD(__u64, x), high = WORD(__u64, x + 8);
		WORD(__u64, x) = WORD(__u64, y);
		WORD(__u64, x + 8) = WORD(__u64, y + 8);
		WORD(__u64, y) = low;
		WORD(__u64, y + 8) = high;
	}
	return DONE;
}

// shuffle permutes the addresses: Fisher and Yates.
STEP shuffle(void) {
	struct answer a;
	if (!answer_of(&a))
		return PASS;
	__u32 n = a.form->count;
	a.work->reply.left = n;
#define ADDRESS(i) \
	if ((i) + 1 >= n) \
		return DONE; \
	exchange();
	TIMES32(ADDRESS, 0)
	TIMES32(ADDRESS, 32)
	return DONE;
}

static __always_inline void copy_options(__u8 *to, const __u8 *from) {
#pragma unroll
	for (int i = 0; i < MAX_OPTIONS; i += 8)
		WORD(__u64, to + i) = WORD(__u64, from + i);
}

// look_up sets the place of the record for the key of the query and a search list.
STEP look_up(__u32 list) {
	struct work *w = work_of();
	__u32 zero = 0;
	struct index *all = bpf_map_lookup_elem(&places, &zero);
	if (!w || !all)
		return PASS;
	__u64 hash = mix(w->hash, (__u64)list << 32 | (__u32)w->key.type << 16 | w->key.flags << 8 | w->key.listener);
	__u64 tag = hash >> TAG_SHIFT | 1, slot = 0;
	const __u64 *slots = all->slots + (hash & (SLOTS - 1));
#define PROBE(i) \
	slot = WORD(__u64, slots + (i)); \
	if (slot >> TAG_SHIFT == tag) \
		goto found;
	TIMES4(PROBE, 0)
	TIMES4(PROBE, 4)
	return NO_ENTRY;
found:
	w->reply.at.version = slot & ((1 << VERSION_BITS) - 1);
	w->reply.at.granule = slot >> VERSION_BITS & ((1 << GRANULE_BITS) - 1);
	w->key.list = list;
	return DONE;
}

// find looks up the record for the search list of the client, if that has an answer, or the one without a list.
STEP find(void) {
	struct control *c = control_of();
	struct work *w = work_of();
	if (!c || !w)
		return PASS;
	if (c->searches[w->key.listener & (MAX_LISTENERS - 1)]) {
		struct client_key key;
		__builtin_memcpy(key.address, w->packet.source, 16);
		struct client *client = bpf_map_lookup_elem(&clients, &key);
		if (client && w->now < c->clients_until) {
			__u32 list = client->list, differ = 0;
#pragma unroll
			for (int i = 0; i < 4; i++)
				differ |= client->address[i] ^ key.address[i];
			if (differ)
				return NO_ENTRY; // nodecache has used the element of the map for another client meanwhile
			if (look_up(list) == DONE)
				return DONE;
		}
	}
	return look_up(0);
}

// seconds returns a time in seconds, rounded up.
static __always_inline __u32 seconds(__u64 ns) { return (ns + 999999999) / 1000000000; }

// validate finds out whether the record may be served, and with which TTLs: the answer is valid while a session vouches for it,
// or until its TTL ends. The record's key is compared, since that of another one may have the same slot and tag.
STEP validate(void) {
	struct control *c = control_of();
	struct work *w = work_of();
	if (!c || !w)
		return PASS;
	struct record *r = record_at(w->reply.at.granule);
	if (!r)
		return NO_ENTRY;
	if (WORD(__u32, &r->version) != w->reply.at.version)
		return EXPIRED;
	WORD(__u32, &w->scratch) = r->forms[0].at ? r->forms[0].at : r->forms[1].at;
	const __u8 *name = (const __u8 *)r + AT(WORD(__u32, &w->scratch)) + HEADER;
	__u64 differ = (r->name_len ^ w->question.name_len) | (r->list ^ w->key.list) | (r->type ^ w->key.type) | (r->key_flags ^ w->key.flags) | (r->listener ^ w->key.listener);
#pragma unroll
	for (int i = 0; i < SHORT_NAME / 8; i++)
		differ |= (WORD(__u64, name + 8 * i) & w->masks[i]) ^ WORD(__u64, w->key.name + 8 * i);
	if (r->name_len > SHORT_NAME) {
#pragma unroll
		for (int i = SHORT_NAME / 8; i < MAX_NAME / 8; i++)
			differ |= (WORD(__u64, name + 8 * i) & w->masks[i]) ^ WORD(__u64, w->key.name + 8 * i);
	}
	if (differ)
		return NO_ENTRY;
	__u64 now = w->now;
	w->reply.counter = (w->question.edns ? COUNT_EDNS : 0) | (w->packet.ipv6 ? COUNT_IPV6 : 0) | (r->expires && now >= r->expires ? COUNT_BEYOND : 0);
	w->reply.age = 0;
	w->reply.max = 0;
	__u32 fixed = r->flags & RECORD_FIXED || now <= r->stored;
	if (r->session) {
		struct session *s = &c->sessions[r->session & (MAX_SESSIONS - 1)];
		if (now < s->until && (!r->vouched_until || now < r->vouched_until)) {
			if (!fixed && r->limit > now)
				w->reply.max = seconds(r->limit - now);
			return DONE;
		}
		if (s->lapsed || now >= r->until)
			return EXPIRED;
		if (!fixed)
			w->reply.max = seconds(r->expires - now);
	} else if (now >= r->until) {
		return EXPIRED;
	}
	if (!fixed)
		w->reply.age = (now - r->stored) / 1000000000;
	return DONE;
}

// choose chooses the form of the answer that fits the client, as plugin fastpath does.
STEP choose(void) {
	struct work *w = work_of();
	if (!w)
		return PASS;
	struct record *r = record_at(w->reply.at.granule);
	if (!r)
		return NO_ENTRY;
	__u32 limit = w->question.limit, upper = w->question.upper != 0, opt = 0;
	if (upper && !(r->flags & RECORD_ANY_CASE))
		return CASE;
	w->reply.options = 0;
	if (w->question.edns) {
		if (r->options > MAX_OPTIONS)
			return LENGTH;
		w->reply.options = r->options;
		opt = OPT + r->options;
	}
	__u32 len = r->forms[0].len, counted = len + opt + r->forms[0].excess;
	w->reply.form = 0;
	if (!len || counted > limit || counted > (w->packet.ipv6 ? 1220 : 1480)) {
		w->reply.form = 1;
		len = r->forms[1].len;
		if (!len || upper || len + opt + r->forms[1].excess > limit)
			return LENGTH;
	}
	if (len < HEADER || len + opt > MAX_ANSWER)
		return LENGTH;
	w->reply.len = len;
	w->reply.size = len + opt;
	return DONE;
}

// build makes the message of the reply.
STEP build(void) {
	struct work *w = work_of();
	if (!w)
		return PASS;
	struct record *r = record_at(w->reply.at.granule);
	if (!r)
		return NO_ENTRY;
	struct question *q = &w->question;
	__u8 *b = w->bytes, *query = w->query;
	__u32 len = w->reply.len, size = w->reply.size, options = w->reply.options;
	if (len < HEADER || len > MAX_ANSWER || size > MAX_ANSWER)
		return LENGTH;
	copy_answer();
	b[0] = query[0];
	b[1] = query[1];
	b[2] = 0x80 | (b[2] & 0x04) | (query[2] & 0x01);
	b[3] = (b[3] & (q->dnssec_ok || query[3] & 0x20 ? 0xaf : 0x8f)) | (query[3] & 0x10);
	if (q->upper)
		set_names();
	if (w->reply.age || w->reply.max)
		set_ttls();
	if (r->flags & RECORD_SHUFFLE)
		shuffle();
	if (q->edns) {
		write16(b + 10, read16(b + 10) + 1);
		__u8 *o = b + len;
		o[0] = 0;
		write16(o + 1, 41);
		write16(o + 3, q->udp_size);
		o[5] = o[6] = o[8] = 0;
		o[7] = q->dnssec_ok ? 0x80 : 0;
		write16(o + 9, options);
		if (options)
			copy_options(o + OPT, (__u8 *)r + AT(r->options_at));
	}
	WORD(__u32, b + size) = 0; // the sum of the last bytes
	return DONE;
}

// send turns the packet of the query into that of the reply.
STEP send(struct __sk_buff *skb) {
	struct work *w = work_of();
	if (!w)
		return PASS;
	struct packet *p = &w->packet;
	__u32 len = w->reply.size, ipv6 = p->ipv6;
	if (len < HEADER || len > MAX_ANSWER)
		return LENGTH;
	__u64 check = pseudo(p, len);
	__u16 udp_len = bpf_htons(len + sizeof(struct udphdr));
	if (w->reply.complete) {
		check += p->source_port + p->destination_port + udp_len + sum(w->bytes, len);
		check = (__u16)~fold(check);
		if (check == 0)
			check = 0xffff;
	} else {
		check = fold(check);
	}
	struct ethhdr *eth;
	struct udphdr *udp = (void *)(w->heads + HEADS - sizeof(*udp));
	__u32 head;
	if (ipv6) {
		head = IPV6_HEADS;
		eth = (void *)(w->heads + HEADS - IPV6_HEADS);
		struct ipv6hdr *ip = (void *)(eth + 1);
		__builtin_memset(ip, 0, 4);
		ip->version = 6;
		ip->payload_len = udp_len;
		ip->hop_limit = 64;
		__builtin_memcpy(&ip->saddr, p->destination, 16);
		__builtin_memcpy(&ip->daddr, p->source, 16);
	} else {
		head = IPV4_HEADS;
		eth = (void *)(w->heads + HEADS - IPV4_HEADS);
		struct iphdr *ip = (void *)(eth + 1);
		ip->tos = 0;
		ip->tot_len = bpf_htons(len + sizeof(*udp) + sizeof(*ip));
		ip->id = 0;
		ip->frag_off = bpf_htons(0x4000); // an atomic datagram (RFC 6864): it fits the smallest MTU of interfaces with the program
		ip->ttl = 64;
		ip->check = 0;
		ip->saddr = p->destination[3];
		ip->daddr = p->source[3];
		__u64 sum = 0;
		__u16 *words = (void *)ip;
#pragma unroll
		for (int i = 0; i < sizeof(*ip) / 2; i++)
			sum += words[i];
		ip->check = ~fold(sum);
	}
	udp->source = p->destination_port;
	udp->dest = p->source_port;
	udp->len = udp_len;
	udp->check = check;
	__u8 mac[ETH_ALEN];
	__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, mac, ETH_ALEN);
	// The verifier of Linux 6.12 does not know the limits of the length any longer, where it follows speculation.
	asm volatile("%0 &= 0x7ff" : "+r"(len));
	__u32 whole = head + len;
	if (bpf_skb_change_tail(skb, whole, 0))
		return PACKET;
	// A failure here would leave neither the query nor the reply. There is none: the packet is linear, and long enough.
	if (bpf_skb_store_bytes(skb, 0, eth, whole, 0))
		return PACKET;
	return DONE;
}

// commit counts the answer and sends it, if the record is still the one that was read.
STEP commit(struct __sk_buff *skb) {
	struct work *w = work_of();
	if (!w)
		return PASS;
	struct record *r = record_at(w->reply.at.granule);
	if (!r)
		return NO_ENTRY;
	__u64 *answers = &r->counts[w->reply.counter & 7];
	// An atomic operation whose result is used is a full barrier: all reads of the record come before that of its version.
	__u64 before = __sync_fetch_and_add(answers, 1);
	int result = EXPIRED;
	if (before != ~0ULL && WORD(__u32, &r->version) == w->reply.at.version)
		result = send(skb);
	if (result != DONE)
		__sync_fetch_and_add(answers, -1);
	return result;
}

static __always_inline int answer(struct __sk_buff *skb) {
	int result = parse_packet(skb);
	if (result != DONE)
		return result;
	struct work *w = work_of();
	if (!w)
		return PASS;
	__u32 len = w->packet.len, head = w->packet.dns;
	if (len < HEADER || len > MAX_QUERY || bpf_skb_load_bytes(skb, head, w->query, len))
		return PACKET;
	WORD(__u32, w->query + len) = 0; // the sum of the last bytes
	if ((result = parse_query()) != DONE || (result = find()) != DONE || (result = validate()) != DONE || (result = choose()) != DONE ||
	    (result = check_sum()) != DONE || (result = build()) != DONE)
		return result;
	return commit(skb);
}

SEC("tc")
int nearside_answer(struct __sk_buff *skb) {
	int result = answer(skb);
	if (result == PASS)
		return PASS;
	if (result != DONE) {
		if (result > 0 && result < REASONS)
			count(result, 1);
		return PASS;
	}
	struct work *w = work_of();
	if (!w)
		return PASS; // never: the map has this element
	count(ANSWERED, 1);
	count(NANOSECONDS, bpf_ktime_get_ns() - w->now);
	return bpf_redirect(skb->ifindex, 0);
}

// program has the program above, until nodecache ends: the kernel empties a program array with the last descriptor of it.
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} program SEC(".maps");

// nearside_filter is the filter of a clsact qdisc, where the kernel has no links for tc: it remains when nodecache ends, and
// passes every packet then.
SEC("tc")
int nearside_filter(struct __sk_buff *skb) {
	bpf_tail_call(skb, &program, 0);
	return PASS;
}
