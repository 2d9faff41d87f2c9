#!/usr/bin/env bash
# Runs every fuzz target of the module, one after another, for the time or number of inputs given (default 1m), such as 1h
# or 2000x, and prints the number of inputs. It begins with the kept inputs, those of corpus.tar.xz, which count.
#
#   test/fuzz/fuzz.sh 2000x
#   test/fuzz/fuzz.sh -keep 1h     then write the inputs that reached more code to corpus.tar.xz
set -euo pipefail
cd "$(dirname "$0")/../.."
keep=
if [[ ${1:-} == -keep ]]; then
	keep=yes
	shift
fi
limit=${1:-1m}
archive=$PWD/test/fuzz/corpus.tar.xz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/corpus"
if [[ -f $archive ]]; then
	tar -xJf "$archive" -C "$work/corpus"
elif [[ ! $keep ]]; then
	echo "$archive is missing" >&2
	exit 1
fi

total=0 targets=0
for folder in $(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do
	program=$work/test
	go test -c -fuzz=. -o "$program" "$folder"
	for target in $(grep -ho '^func Fuzz[A-Za-z0-9_]*' "$folder"/*_test.go | cut -d' ' -f2); do
		mkdir -p "$work/corpus/$folder"
		if ! (cd "$folder" && "$program" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$limit" -test.fuzzcachedir "$work/corpus/$folder") >"$work/log" 2>&1; then
			cat "$work/log"
			echo "$folder $target failed"
			exit 1
		fi
		inputs=$(grep -oE '(execs|coverage): [0-9]+' "$work/log" | tail -1 | cut -d' ' -f2) || {
			echo "$folder $target ran no inputs"
			exit 1
		}
		total=$((total + inputs)) targets=$((targets + 1))
		echo "$folder $target: $inputs inputs"
	done
done
echo "$targets targets, $total inputs"

if [[ $keep ]]; then
	# Of each target at most 200 inputs of at most 4 KiB: the kept ones, whose time is 0, and then those that were found last.
	find "$work/corpus" -type f -size +4k -delete
	find "$work/corpus" -mindepth 2 -type d | while read -r folder; do
		find "$folder" -maxdepth 1 -type f -printf '%T@ %p\n' | awk '{ print ($1 < 1 ? -1e12 : -$1), $2 }' |
			sort -g | tail -n +201 | cut -d' ' -f2- | xargs -r rm --
	done
	tar -C "$work/corpus" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf - . | xz -9 >"$archive"
	ls -l "$archive"
fi
