/* lookup any|4|6 NAME looks up a name by getaddrinfo of the C library. It prints a line "canonical NAME" and a line
   "address ADDRESS" for each address, or one line "error REASON". */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

static const char *reason(int code)
{
	switch (code) {
	case EAI_NONAME:
#ifdef EAI_NODATA
	case EAI_NODATA:
#endif
		return "none";
	case EAI_AGAIN:
		return "again";
	case EAI_FAIL:
		return "fail";
	}
	return gai_strerror(code);
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: lookup any|4|6 NAME\n");
		return 2;
	}
	struct addrinfo hints = { .ai_flags = AI_CANONNAME, .ai_socktype = SOCK_STREAM }, *all, *one;
	hints.ai_family = !strcmp(argv[1], "4") ? AF_INET : !strcmp(argv[1], "6") ? AF_INET6 : AF_UNSPEC;
	int code = getaddrinfo(argv[2], NULL, &hints, &all);
	if (code) {
		printf("error %s\n", reason(code));
		return 0;
	}
	printf("canonical %s\n", all->ai_canonname);
	for (one = all; one; one = one->ai_next) {
		char text[INET6_ADDRSTRLEN];
		const void *raw = one->ai_family == AF_INET
			? (const void *)&((struct sockaddr_in *)one->ai_addr)->sin_addr
			: (const void *)&((struct sockaddr_in6 *)one->ai_addr)->sin6_addr;
		printf("address %s\n", inet_ntop(one->ai_family, raw, text, sizeof text));
	}
	freeaddrinfo(all);
	return 0;
}
