#!/usr/bin/env bash
# Runs every fuzz target of the module, one after another, for the time given (default 1m).
set -euo pipefail
cd "$(dirname "$0")/.."
for dir in $(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do
	for target in $(grep -ho '^func Fuzz[A-Za-z0-9_]*' "$dir"/*_test.go | cut -d' ' -f2); do
		echo "$dir $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "${1:-1m}" "$dir"
	done
done
