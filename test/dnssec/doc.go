// Package dnssec compares the signed answers of clusterdns with those of CoreDNS, verifies their signatures, and has a validating
// resolver query them.
package dnssec
