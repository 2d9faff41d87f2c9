/* cares SERVER TYPE/NAME... sends each question to a server by c-ares. It prints "= TYPE/NAME", and a line for each record of
   the reply, and "status STATUS". */
#include <ares.h>
#include <arpa/inet.h>
#include <arpa/nameser.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/select.h>

static int number(const char *type)
{
	static const struct { const char *name; int number; } all[] = {
		{"A", ns_t_a}, {"AAAA", ns_t_aaaa}, {"SRV", ns_t_srv}, {"PTR", ns_t_ptr}, {"MX", ns_t_mx}, {"CNAME", ns_t_cname}, {"TXT", ns_t_txt},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (!strcmp(all[i].name, type))
			return all[i].number;
	return -1;
}

static void print_status(int status)
{
	switch (status) {
	case ARES_SUCCESS: puts("status NOERROR"); break;
	case ARES_ENOTFOUND: puts("status NXDOMAIN"); break;
	case ARES_ENODATA: puts("status NODATA"); break;
	default: printf("status %s\n", ares_strerror(status));
	}
}

static int print_addresses(const char *type, const unsigned char *text, int size)
{
	struct hostent *host;
	int status = number(type) == ns_t_a ? ares_parse_a_reply(text, size, &host, NULL, NULL) : ares_parse_aaaa_reply(text, size, &host, NULL, NULL);
	if (status != ARES_SUCCESS)
		return status;
	if (host->h_aliases[0])
		printf("CNAME %s\n", host->h_name);
	for (char **a = host->h_addr_list; *a; a++) {
		char address[INET6_ADDRSTRLEN];
		printf("%s %s\n", type, inet_ntop(host->h_addrtype, *a, address, sizeof address));
	}
	ares_free_hostent(host);
	return status;
}

static int print_services(const unsigned char *text, int size)
{
	struct ares_srv_reply *all;
	int status = ares_parse_srv_reply(text, size, &all);
	if (status != ARES_SUCCESS)
		return status;
	for (struct ares_srv_reply *one = all; one; one = one->next)
		printf("SRV %d %d %d %s\n", one->priority, one->weight, one->port, one->host);
	ares_free_data(all);
	return status;
}

static int print_texts(const unsigned char *text, int size)
{
	struct ares_txt_reply *all;
	int status = ares_parse_txt_reply(text, size, &all);
	if (status != ARES_SUCCESS)
		return status;
	for (struct ares_txt_reply *one = all; one; one = one->next)
		printf("TXT %.*s\n", (int)one->length, one->txt);
	ares_free_data(all);
	return status;
}

static int print_pointer(const unsigned char *text, int size)
{
	struct hostent *host;
	const unsigned char unused[4] = {0};
	int status = ares_parse_ptr_reply(text, size, unused, sizeof unused, AF_INET, &host);
	if (status != ARES_SUCCESS)
		return status;
	for (char **alias = host->h_aliases; *alias; alias++)
		printf("PTR %s\n", *alias);
	ares_free_hostent(host);
	return status;
}

/* print_alias prints the only record of a reply: c-ares has no parser of this type. */
static int print_alias(const unsigned char *text, int size)
{
	const unsigned char *at = text + 12;
	for (int part = 0; part < 3; part++) {
		char *name;
		long used;
		int status = ares_expand_name(at, text, size, &name, &used);
		if (status != ARES_SUCCESS)
			return status;
		if (part == 2)
			printf("CNAME %s\n", name);
		ares_free_string(name);
		at += used + (part ? 10 : 4); /* type, class, TTL and length of a record; type and class of the question */
	}
	return ARES_SUCCESS;
}

static void print_reply(void *type, int status, int timeouts, unsigned char *text, int size)
{
	(void)timeouts;
	if (status == ARES_SUCCESS)
		switch (number(type)) {
		case ns_t_a:
		case ns_t_aaaa: status = print_addresses(type, text, size); break;
		case ns_t_srv: status = print_services(text, size); break;
		case ns_t_txt: status = print_texts(text, size); break;
		case ns_t_ptr: status = print_pointer(text, size); break;
		case ns_t_cname: status = print_alias(text, size); break;
		default: status = ARES_ENOTIMP;
		}
	print_status(status);
}

int main(int argc, char **argv)
{
	ares_channel channel;
	if (argc < 3 || ares_library_init(ARES_LIB_INIT_ALL) || ares_init(&channel) || ares_set_servers_csv(channel, argv[1]))
		return 2;
	for (int i = 2; i < argc; i++) {
		char type[256];
		snprintf(type, sizeof type, "%s", argv[i]);
		char *name = strchr(type, '/');
		if (!name)
			return 2;
		*name++ = 0;
		printf("= %s\n", argv[i]);
		ares_query(channel, name, ns_c_in, number(type), print_reply, type);
		for (;;) {
			fd_set readable, writable;
			FD_ZERO(&readable);
			FD_ZERO(&writable);
			int count = ares_fds(channel, &readable, &writable);
			if (!count)
				break;
			struct timeval limit, *wait = ares_timeout(channel, NULL, &limit);
			select(count, &readable, &writable, NULL, wait);
			ares_process(channel, &readable, &writable);
		}
	}
	ares_destroy(channel);
	ares_library_cleanup();
	return 0;
}
