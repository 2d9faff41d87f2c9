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

// The limits; table.go has the same ones.
#define MAX_NAME      128     // bytes of a name in wire form
#define MAX_ANSWER    1232    // bytes of a reply, DNS flag day 2020
#define MAX_OPTIONS   64      // bytes of EDNS options in a reply
#define MAX_TTLS      96      // records of an answer
#define MAX_OWNERS    32      // owner names that are copies of the question
#define MAX_ADDRESSES 64      // addresses in random order
#define MAX_RECORD    4096    // bytes of a record
#define GRANULE       128     // bytes; records begin at multiples
#define ARENA         (2 << 20)
#define MAX_ENTRIES   4096
#define MAX_LISTENERS 32
#define MAX_SESSIONS  64
#define MAX_CLIENTS   1024
#define MAX_PORTS     4

#define HEADER   12
#define QUESTION 4  // type and class
#define OPT      11 // an OPT record without options
#define SLACK    64

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
	__be16 ports[MAX_PORTS];
};

struct client_key {
	__u32 address[4];
};

struct client {
	__u32 list;
};

struct key {
	__u8 name[MAX_NAME]; // wire form, lower case, then zeros
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

// form is an answer in wire form. Offsets of data are from the begin of the record.
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
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_ENTRIES);
	__type(key, struct key);
	__type(value, struct place);
} places SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS);
	__type(key, enum reason);
	__type(value, __u64);
} counters SEC(".maps");

#define MAX_QUERY (HEADER + MAX_NAME + QUESTION + OPT)

struct work {
	__u8 query[256];
	__u8 reply[2048];
	__u64 masks[MAX_NAME / 8]; // of the bytes of the name
	struct key key;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct work);
} works SEC(".maps");

static __always_inline void count(enum reason reason, __u64 n) {
	__u64 *c = bpf_map_lookup_elem(&counters, &reason);
	if (c)
		*c += n;
}

static __always_inline int pass(enum reason reason) {
	count(reason, 1);
	return PASS;
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

// packet is the packet of a query.
struct packet {
	__u32 source[4], destination[4];
	__u32 dns; // offset of the message
	__u32 len; // of the message
	__u16 source_port, destination_port; // in network order
	__u16 checksum;
	__u16 ipv6;
};

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
		total += (__u32)bpf_csum_diff(0, 0, (__be32 *)(b + at), rest, 0);
	}
	return total;
}

// parse_packet parses the headers. It returns PASS for a packet that is not for a listener, REASONS for one that is, and
// otherwise the reason why it passes.
static __always_inline int parse_packet(struct __sk_buff *skb, struct control *c, struct packet *p, __u32 *listener) {
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct udphdr *udp;
	__u32 total;
	int valid = 1;
	if (skb->vlan_present || skb->pkt_type != 0)
		return PASS;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = data + sizeof(*eth);
		udp = (void *)ip + sizeof(*ip);
		if ((void *)(udp + 1) + HEADER > end) {
			if (skb->len < sizeof(*eth) + sizeof(*ip) + sizeof(*udp) + HEADER ||
			    bpf_skb_pull_data(skb, sizeof(*eth) + sizeof(*ip) + sizeof(*udp) + HEADER))
				return PASS;
			data = (void *)(long)skb->data;
			end = (void *)(long)skb->data_end;
			eth = data;
			ip = data + sizeof(*eth);
			udp = (void *)ip + sizeof(*ip);
			if ((void *)(udp + 1) + HEADER > end)
				return PASS;
		}
		if (eth->h_proto != bpf_htons(ETH_P_IP) || ip->version != 4 || ip->protocol != IPPROTO_UDP)
			return PASS;
		p->source[0] = p->source[1] = p->destination[0] = p->destination[1] = 0;
		p->source[2] = p->destination[2] = bpf_htonl(0xffff);
		p->source[3] = ip->saddr;
		p->destination[3] = ip->daddr;
		p->ipv6 = 0;
		p->dns = sizeof(*eth) + sizeof(*ip) + sizeof(*udp);
		total = bpf_ntohs(ip->tot_len) - sizeof(*ip);
		__u8 first = bpf_ntohl(ip->saddr) >> 24;
		__u64 header = 0;
		__u16 *words = (void *)ip;
#pragma unroll
		for (int i = 0; i < sizeof(*ip) / 2; i++)
			header += words[i];
		valid = ip->ihl == 5 && !(ip->frag_off & bpf_htons(0x3fff)) && bpf_ntohs(ip->tot_len) == skb->len - sizeof(*eth) &&
			fold(header) == 0xffff && first != 0 && first < 224;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = data + sizeof(*eth);
		udp = (void *)ip + sizeof(*ip);
		if ((void *)(udp + 1) + HEADER > end) {
			if (skb->len < sizeof(*eth) + sizeof(*ip) + sizeof(*udp) + HEADER ||
			    bpf_skb_pull_data(skb, sizeof(*eth) + sizeof(*ip) + sizeof(*udp) + HEADER))
				return PASS;
			data = (void *)(long)skb->data;
			end = (void *)(long)skb->data_end;
			eth = data;
			ip = data + sizeof(*eth);
			udp = (void *)ip + sizeof(*ip);
			if ((void *)(udp + 1) + HEADER > end)
				return PASS;
		}
		if (eth->h_proto != bpf_htons(ETH_P_IPV6) || ip->version != 6 || ip->nexthdr != IPPROTO_UDP)
			return PASS;
		__builtin_memcpy(p->source, &ip->saddr, 16);
		__builtin_memcpy(p->destination, &ip->daddr, 16);
		p->ipv6 = 1;
		p->dns = sizeof(*eth) + sizeof(*ip) + sizeof(*udp);
		total = bpf_ntohs(ip->payload_len);
		valid = total == skb->len - sizeof(*eth) - sizeof(*ip) && ip->saddr.s6_addr[0] != 0xff &&
			(p->source[0] | p->source[1] | p->source[2] | p->source[3]) != 0;
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
	*listener = *l;
	if (!valid || udp_len != total || skb->gso_size || p->source_port == 0)
		return PACKET;
	p->len = udp_len - sizeof(*udp);
	return p->len >= HEADER + 1 + QUESTION && p->len <= MAX_QUERY ? REASONS : QUERY;
}

// The state of the checksum of a query.
enum checksum { WRONG, COMPLETE, PARTIAL };

// checksum_state compares the checksum of a query with its bytes. The sender has left the sum of the pseudo header in the
// field if a device is to complete the checksum (CHECKSUM_PARTIAL of struct sk_buff). Both may be true, of one query in
// 65,536: it is WRONG, so that it passes.
static __always_inline enum checksum checksum_state(const struct packet *p, struct work *w) {
	__u64 head = pseudo(p, p->len);
	if (p->checksum == 0)
		return p->ipv6 ? WRONG : COMPLETE;
	__u64 whole = head + p->source_port + p->destination_port + bpf_htons(p->len + sizeof(struct udphdr)) + p->checksum + sum(w->query, p->len);
	int complete = fold(whole) == 0xffff, partial = p->checksum == fold(head);
	if (complete == partial)
		return WRONG;
	return complete ? COMPLETE : PARTIAL;
}

// question is a query's question and flags.
struct question {
	__u32 name_len;
	__u32 limit; // of the reply in bytes
	__u16 udp_size;
	__u8 edns, dnssec_ok;
	__u64 upper; // not 0 if the name has upper-case letters
};

// parse_query parses the message and sets the key, except the list. It returns 0 for another form of query.
static __always_inline int parse_query(struct work *w, __u32 len, struct question *q) {
	__u8 *b = w->query;
	if (len < HEADER + 1 + QUESTION || len > MAX_QUERY)
		return 0;
	if (b[2] & ~0x01 || b[3] & ~0x30)
		return 0;
	if (b[4] || b[5] != 1 || b[6] || b[7] || b[8] || b[9] || b[10] || b[11] > 1)
		return 0;
	q->edns = b[11];
	q->dnssec_ok = 0;
	q->udp_size = 0;
	q->limit = 512;
	if (q->edns) {
		if (len < HEADER + 1 + QUESTION + OPT)
			return 0;
		len -= OPT;
		__u8 *opt = b + len;
		if (opt[0] || read16(opt + 1) != 41 || opt[5] || opt[6] || opt[7] & ~0x80 || opt[8] || opt[9] || opt[10])
			return 0;
		q->udp_size = read16(opt + 3);
		if (q->udp_size > q->limit)
			q->limit = q->udp_size;
		q->dnssec_ok = opt[7] >> 7;
	}
	q->name_len = len - HEADER - QUESTION;
	if (len < HEADER + QUESTION + 1 || q->name_len > MAX_NAME)
		return 0;
	__u8 *end = b + len - QUESTION;
	if (read16(end + 2) != 1)
		return 0;
	w->key.type = bpf_htons(read16(end));
	w->key.flags = (q->dnssec_ok ? FLAG_DO : 0) | (b[3] & 0x10 ? FLAG_CD : 0);
	w->key.list = 0;
	q->upper = 0;
#pragma unroll
	for (int i = 0; i < MAX_NAME / 8; i++) {
		int bytes = (int)q->name_len - 8 * i;
		__u64 mask = bytes >= 8 ? ~0ULL : bytes <= 0 ? 0 : (1ULL << (8 * bytes)) - 1;
		__u64 x = WORD(__u64, b + HEADER + 8 * i) & mask;
		__u64 low = x & 0x7f7f7f7f7f7f7f7fULL;
		__u64 upper = ~x & 0x8080808080808080ULL & ((low + 0x3f3f3f3f3f3f3f3fULL) ^ (low + 0x2525252525252525ULL));
		q->upper |= upper;
		w->masks[i] = mask;
		WORD(__u64, w->key.name + 8 * i) = x | upper >> 2;
	}
	return 1;
}

// copy_name replaces the name at the begin of some bytes by that of the query.
static __always_inline void copy_name(struct work *w, __u8 *to) {
#pragma unroll
	for (int i = 0; i < MAX_NAME / 8; i++) {
		__u64 mask = w->masks[i];
		WORD(__u64, to + 8 * i) = (WORD(__u64, to + 8 * i) & ~mask) | (WORD(__u64, w->query + HEADER + 8 * i) & mask);
	}
}

// AT bounds an offset of data that was read from a record: table.go places all data so.
#define AT(offset) ((__u32)(offset) & (MAX_RECORD / 2 - 1))

// LAST is the last offset in a reply at which n bytes can be changed.
#define LAST(n) (sizeof(((struct work *)0)->reply) - (n))

// answer is what the functions below work on.
struct answer {
	struct work *work;
	const __u8 *record;
	const struct form *form;
};

static __always_inline int answer_of(struct answer *a, __u32 granule, __u32 form) {
	__u32 zero = 0;
	struct work *w = bpf_map_lookup_elem(&works, &zero);
	struct arena *all = bpf_map_lookup_elem(&arena, &zero);
	if (!w || !all || granule > (ARENA - MAX_RECORD) / GRANULE || form > 1)
		return 0;
	struct record *r = (struct record *)(all->bytes + (__u64)granule * GRANULE);
	a->work = w;
	a->record = (const __u8 *)r;
	a->form = form ? &r->forms[1] : &r->forms[0];
	return 1;
}

// The verifier examines each function that is not static once, and not in every state of its callers.
#define VERIFIED_ALONE __attribute__((noinline)) int

// copy_answer copies the answer, and more bytes, to the reply.
VERIFIED_ALONE copy_answer(__u32 granule, __u32 form) {
	struct answer a;
	if (!answer_of(&a, granule, form))
		return 0;
	__u32 len = a.form->len;
	const __u8 *from = a.record + AT(a.form->at);
	for (__u32 at = 0; at < MAX_ANSWER; at += SLACK) {
		if (at >= len)
			break;
#pragma unroll
		for (int i = 0; i < SLACK; i += 8)
			WORD(__u64, a.work->reply + at + i) = WORD(__u64, from + at + i);
	}
	return 1;
}

// set_ttls subtracts age from the TTLs, which are at most max then, if it is not 0.
VERIFIED_ALONE set_ttls(__u32 granule, __u32 form, __u32 age, __u32 max) {
	struct answer a;
	if (!answer_of(&a, granule, form))
		return 0;
	const __u8 *offsets = a.record + AT(a.form->ttls_at);
	__u32 n = a.form->ttls;
	for (int i = 0; i < MAX_TTLS; i++) {
		if (i >= n)
			break;
		__u32 at = WORD(__u16, offsets + 2 * i);
		if (at > LAST(4))
			break;
		__u32 ttl = bpf_ntohl(WORD(__u32, a.work->reply + at));
		ttl -= ttl < age ? ttl : age;
		if (max && ttl > max)
			ttl = max;
		WORD(__u32, a.work->reply + at) = bpf_htonl(ttl);
	}
	return 1;
}

// set_owners gives the copies of the question's name in the reply the letters of the query.
VERIFIED_ALONE set_owners(__u32 granule, __u32 form) {
	struct answer a;
	if (!answer_of(&a, granule, form))
		return 0;
	const __u8 *offsets = a.record + AT(a.form->owners_at);
	__u32 n = a.form->owners;
	for (int i = 0; i < MAX_OWNERS; i++) {
		if (i >= n)
			break;
		__u32 at = WORD(__u16, offsets + 2 * i);
		if (at > LAST(MAX_NAME))
			break;
		copy_name(a.work, a.work->reply + at);
	}
	return 1;
}

// shuffle permutes the addresses. Permutations are equally probable, within 64 bits of randomness.
VERIFIED_ALONE shuffle(__u32 granule, __u32 form) {
	struct answer a;
	if (!answer_of(&a, granule, form))
		return 0;
	__u64 random = (__u64)bpf_get_prandom_u32() << 32 | bpf_get_prandom_u32();
	__u32 first = a.form->first, stride = a.form->stride, n = a.form->count, size = a.form->size;
	for (__u32 k = 1; k < MAX_ADDRESSES; k++) {
		if (k >= n)
			break;
		__u32 i = n - k;
		random = random * 0xda942042e4dd58b5ULL + 0x9e3779b97f4a7c15ULL;
		__u32 j = (random >> 32) * (i + 1) >> 32;
		__u32 at = first + i * stride, other = first + j * stride;
		if (at > LAST(16) || other > LAST(16))
			break;
		__u8 *x = a.work->reply + at, *y = a.work->reply + other;
		if (size == 4) {
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
	}
	return 1;
}

static __always_inline void copy_options(__u8 *to, const __u8 *from) {
#pragma unroll
	for (int i = 0; i < MAX_OPTIONS; i += 8)
		WORD(__u64, to + i) = WORD(__u64, from + i);
}

// seconds returns a time in seconds, rounded up.
static __always_inline __u32 seconds(__u64 ns) { return (ns + 999999999) / 1000000000; }

// find returns the record for the key of a query, NULL without one.
static __always_inline struct record *find(struct work *w, struct arena *a, struct place *at) {
	struct place *found = bpf_map_lookup_elem(&places, &w->key);
	if (!found)
		return 0;
	at->granule = found->granule;
	at->version = found->version;
	if (at->granule > (ARENA - MAX_RECORD) / GRANULE)
		return 0;
	return (struct record *)(a->bytes + (__u64)at->granule * GRANULE);
}

// send turns the packet of a query into that of the reply, and returns whether it could.
static __always_inline int send(struct __sk_buff *skb, const struct packet *p, struct work *w, __u32 len, enum checksum state) {
	__u64 check = pseudo(p, len);
	__u16 udp_len = bpf_htons(len + sizeof(struct udphdr));
	if (state == COMPLETE) {
		check += p->source_port + p->destination_port + udp_len + sum(w->reply, len);
		check = (__u16)~fold(check);
		if (check == 0)
			check = 0xffff;
	} else {
		check = fold(check);
	}
	if (bpf_skb_change_tail(skb, p->dns + len, 0))
		return 0;
	if (len == 0 || len > MAX_ANSWER)
		return 0;
	if (bpf_skb_store_bytes(skb, p->dns, w->reply, len, 0))
		return 0;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct udphdr *udp;
	if (p->ipv6) {
		struct ipv6hdr *ip = data + sizeof(*eth);
		udp = (void *)(ip + 1);
		if ((void *)(udp + 1) > end)
			return 0;
		__builtin_memset(ip, 0, 4);
		ip->version = 6;
		ip->payload_len = udp_len;
		ip->hop_limit = 64;
		__builtin_memcpy(&ip->saddr, p->destination, 16);
		__builtin_memcpy(&ip->daddr, p->source, 16);
	} else {
		struct iphdr *ip = data + sizeof(*eth);
		udp = (void *)(ip + 1);
		if ((void *)(udp + 1) > end)
			return 0;
		ip->tos = 0;
		ip->tot_len = bpf_htons(len + sizeof(*udp) + sizeof(*ip));
		ip->id = 0;
		ip->frag_off = bpf_htons(0x4000); // do not fragment, as a reply of a socket
		ip->ttl = 64;
		ip->check = 0;
		ip->saddr = p->destination[3];
		ip->daddr = p->source[3];
		__u64 header = 0;
		__u16 *words = (void *)ip;
#pragma unroll
		for (int i = 0; i < sizeof(*ip) / 2; i++)
			header += words[i];
		ip->check = ~fold(header);
	}
	udp->source = p->destination_port;
	udp->dest = p->source_port;
	udp->len = udp_len;
	udp->check = check;
	__u8 mac[ETH_ALEN];
	__builtin_memcpy(mac, eth->h_dest, ETH_ALEN);
	__builtin_memcpy(eth->h_dest, eth->h_source, ETH_ALEN);
	__builtin_memcpy(eth->h_source, mac, ETH_ALEN);
	return 1;
}

SEC("tc")
int nearside_answer(struct __sk_buff *skb) {
	struct packet p;
	struct question q;
	struct place at;
	__u32 zero = 0, listener;
	struct control *c = bpf_map_lookup_elem(&control, &zero);
	if (!c)
		return PASS;
	int parsed = parse_packet(skb, c, &p, &listener);
	if (parsed == PASS)
		return PASS;
	if (parsed != REASONS)
		return pass(parsed);
	__u64 now = bpf_ktime_get_ns();
	if (listener >= MAX_LISTENERS || now >= c->until[listener])
		return pass(NO_LEASE);

	struct work *w = bpf_map_lookup_elem(&works, &zero);
	struct arena *a = bpf_map_lookup_elem(&arena, &zero);
	if (!w || !a)
		return PASS;
	__builtin_memset(w->query, 0, MAX_QUERY + 9); // a multiple of 8, with what the sum of the last bytes reads
	__u32 len = p.len;
	if (len < HEADER || len > MAX_QUERY || bpf_skb_load_bytes(skb, p.dns, w->query, len))
		return pass(PACKET);
	w->key.listener = listener;
	if (!parse_query(w, len, &q))
		return pass(QUERY);

	struct record *r = 0;
	if (c->searches[listener]) {
		struct client_key key;
		__builtin_memcpy(key.address, p.source, 16);
		struct client *client = bpf_map_lookup_elem(&clients, &key);
		if (client && now < c->clients_until) {
			w->key.list = client->list;
			r = find(w, a, &at);
			w->key.list = 0;
		}
	}
	if (!r)
		r = find(w, a, &at);
	if (!r)
		return pass(NO_ENTRY);
	if (WORD(__u32, &r->version) != at.version || r->name_len != q.name_len)
		return pass(EXPIRED);

	// The answer is valid while a session vouches for it, or until its TTL ends.
	__u64 until = r->until, expires = r->expires, stored = r->stored, limit = r->limit;
	__u32 age = 0, max = 0, vouched = 0;
	if (r->session) {
		struct session *s = &c->sessions[r->session & (MAX_SESSIONS - 1)];
		vouched = now < s->until && (!r->vouched_until || now < r->vouched_until);
		if (!vouched && s->lapsed)
			return pass(EXPIRED);
	}
	if (!vouched && now >= until)
		return pass(EXPIRED);
	if (!(r->flags & RECORD_FIXED) && now > stored) {
		if (!vouched)
			age = (now - stored) / 1000000000;
		if (vouched && limit > now)
			max = seconds(limit - now);
		else if (!vouched && r->session)
			max = seconds(expires - now);
	}

	if (q.upper && !(r->flags & RECORD_ANY_CASE))
		return pass(CASE);
	__u32 options = q.edns ? r->options : 0, opt = q.edns ? OPT + options : 0;
	if (options > MAX_OPTIONS)
		return pass(LENGTH);
	const struct form *f = &r->forms[0];
	__u32 form = 0, size = f->len + opt, counted = size + f->excess;
	if (!f->len || counted > q.limit || counted > (p.ipv6 ? 1220 : 1480)) {
		f = &r->forms[1];
		form = 1;
		size = f->len + opt;
		counted = size + f->excess;
		if (!f->len || q.upper || counted > q.limit)
			return pass(LENGTH);
	}
	if (size > MAX_ANSWER || size < HEADER)
		return pass(LENGTH);
	enum checksum state = checksum_state(&p, w);
	if (state == WRONG)
		return pass(CHECKSUM);

	__u8 *b = w->reply;
	__u32 end = f->len;
	if (end > MAX_ANSWER || end < HEADER)
		return pass(LENGTH);
	copy_answer(at.granule, form);
	b[0] = w->query[0];
	b[1] = w->query[1];
	b[2] = 0x80 | (b[2] & 0x04) | (w->query[2] & 0x01);
	b[3] = (b[3] & (q.dnssec_ok || w->query[3] & 0x20 ? 0xaf : 0x8f)) | (w->query[3] & 0x10);
	if (q.upper) {
		copy_name(w, b + HEADER);
		set_owners(at.granule, form);
	}
	if (age || max)
		set_ttls(at.granule, form, age, max);
	if (r->flags & RECORD_SHUFFLE && f->count > 1)
		shuffle(at.granule, form);
	if (q.edns) {
		write16(b + 10, read16(b + 10) + 1);
		__u8 *o = b + end;
		o[0] = 0;
		write16(o + 1, 41);
		write16(o + 3, q.udp_size);
		o[5] = o[6] = o[8] = 0;
		o[7] = q.dnssec_ok ? 0x80 : 0;
		write16(o + 9, options);
		if (options)
			copy_options(o + OPT, (__u8 *)r + AT(r->options_at));
	}
	if (size > MAX_ANSWER)
		return pass(LENGTH);
	WORD(__u32, b + size) = 0; // the sum of the last bytes

	__u32 counter = (q.edns ? COUNT_EDNS : 0) | (p.ipv6 ? COUNT_IPV6 : 0) | (expires && now >= expires ? COUNT_BEYOND : 0);
	__u64 *answers = &r->counts[counter & 7];
	// An atomic operation whose result is used is a full barrier: all reads of the record come before that of its version.
	__u64 before = __sync_fetch_and_add(answers, 1);
	if (before == ~0ULL || WORD(__u32, &r->version) != at.version) {
		__sync_fetch_and_add(answers, -1);
		return pass(EXPIRED);
	}
	if (!send(skb, &p, w, size, state)) {
		__sync_fetch_and_add(answers, -1);
		return pass(PACKET);
	}
	count(ANSWERED, 1);
	count(NANOSECONDS, bpf_ktime_get_ns() - now);
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
