// Package pages has the addresses of documentation pages, for messages that refer to them. It imports nothing.
package pages

// Bundle is the page about builds of CoreDNS with plugins of nearside, and of clusterdns with further plugins.
const Bundle = "https://github.com/nearside-dns/nearside/blob/main/docs/bundle.md"
