module github.com/nearside-dns/nearside/test/actionlint

go 1.26.0

tool github.com/rhysd/actionlint/cmd/actionlint
