module github.com/nearside-dns/nearside/deploy/release/tools

go 1.26.0

tool (
	github.com/cpuguy83/go-md2man/v2
	github.com/sigstore/cosign/v2/cmd/cosign
	golang.org/x/vuln/cmd/govulncheck
)
