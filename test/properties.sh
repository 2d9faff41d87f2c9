#!/usr/bin/env bash
# Runs every test that calls property.Seeds with new seeds, round after round, for the time given (default 10m); with a
# folder, only its tests. It stops at the first failure; the output names the command that repeats it.
set -euo pipefail
cd "$(dirname "$0")/.."
limit=${1:-10m}
case $limit in
*h) seconds=$((${limit%h} * 3600)) ;;
*m) seconds=$((${limit%m} * 60)) ;;
*) seconds=${limit%s} ;;
esac
end=$((SECONDS + seconds))
# KiB for each program, so that a seed that is used as a size fails instead of the machine. etcd maps 10 GiB.
ulimit -v $((32 << 20))
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT

# The tests of a folder: those in whose function property.Seeds is called.
tests() {
	awk '/^func / { name = "" } /^func Test/ { sub(/^func /, ""); sub(/\(.*/, ""); name = $0 }
		/property\.Seeds\(/ && name { print name }' "$1"/*_test.go | sort -u | paste -sd '|'
}

folders=$(grep -rl --include='*_test.go' 'property\.Seeds(' "${2:-.}" | xargs -n1 dirname | sort -u)
for folder in $folders; do
	go test -c -o "$programs/${folder//\//_}" "$folder"
done
while :; do
	for folder in $(shuf -e $folders); do
		if ((SECONDS >= end)); then
			exit 0
		fi
		seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
		names=$(tests "$folder")
		echo "$folder: $names, seeds $seed and up"
		if ! output=$(cd "$folder" && NEARSIDE_SEED=$seed.. "$programs/${folder//\//_}" -test.count=1 -test.timeout=1h -test.run "^($names)\$" 2>&1); then
			grep -v WARNING <<<"$output" || true
			grep 'to repeat it:' <<<"$output" || echo "to repeat it: NEARSIDE_SEED=$seed.. go test -count=1 -run '^($names)\$' $folder"
			exit 1
		fi
	done
done
