#!/usr/bin/env bash
# Installs the machine that the tests of this folder boot: qemu and a static busybox from Debian's
# packages, and the files of two of Debian's cloud kernels, which are not installed on
# the system: that of Debian 12 (Linux 6.1), and Linux 6.12.
#
#   test/kernel/install.sh           install the missing parts
#
# The kernels go to the folders "kernel" and "kernel-6.12" below the one that
# test/install.sh --print-bin prints. An existing one is not updated; delete its folder
# to install the current one of Debian.
set -euo pipefail

say() { printf 'kernel/install.sh: %s\n' "$*"; }
complain() { printf 'kernel/install.sh: %s\n' "$*" >&2; }

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
bin=$("$here/../install.sh" --print-bin)
wait_for_lock=(-o DPkg::Lock::Timeout=300)

if [[ $(uname -m) != x86_64 ]]; then
	complain "the kernel is one for x86_64, and busybox has to be too; this is $(uname -m)"
	exit 1
fi

# logged COMMAND... prints the output of the command only if it fails.
logged() {
	local log
	log=$(mktemp)
	if ! "$@" >"$log" 2>&1; then
		cat "$log" >&2
		rm -f "$log"
		return 1
	fi
	rm -f "$log"
}

# update fetches the package lists, once. Another apt-get can hold their lock,
# for which apt-get itself does not wait here.
updated=
update() {
	local attempt
	[[ -z $updated ]] || return 0
	for attempt in 1 2 3 4 5; do
		if logged apt-get -q "${wait_for_lock[@]}" update; then
			updated=1
			return
		fi
		sleep "$((attempt * 3))"
	done
	return 1
}

# package PROGRAM DEBIAN_PACKAGE
package() {
	if command -v "$1" >/dev/null; then
		say "$1: have $(command -v "$1")"
		return
	fi
	if [[ $(id -u) -ne 0 ]] || ! command -v apt-get >/dev/null; then
		complain "$1: missing; install the package that has it (Debian: apt-get install $2)"
		return 1
	fi
	say "$1: installing the Debian package $2"
	update
	DEBIAN_FRONTEND=noninteractive logged \
		apt-get -q -y "${wait_for_lock[@]}" --no-install-recommends install "$2"
}

# static_busybox replaces a dynamic one, which has no libraries in the machine
# that is booted.
static_busybox() {
	if command -v busybox >/dev/null && ! ldd "$(command -v busybox)" >/dev/null 2>&1; then
		say "busybox: have $(command -v busybox)"
		return
	fi
	if [[ $(id -u) -ne 0 ]] || ! command -v apt-get >/dev/null; then
		complain "busybox: missing, or not static; install the package that has it (Debian: apt-get install busybox-static)"
		return 1
	fi
	say "busybox: installing the Debian package busybox-static"
	update
	DEBIAN_FRONTEND=noninteractive logged \
		apt-get -q -y "${wait_for_lock[@]}" --no-install-recommends install busybox-static
}

# image META prints the package that has the files: META only depends on it.
image() { apt-cache depends "$1" | awk '$1 == "Depends:" && $2 ~ /^linux-image-/ { print $2; exit }'; }

# kernel FOLDER META puts vmlinuz and the folder modules into place. The folder appears
# as a whole or not at all.
kernel() {
	local folder=$bin/$1 meta=$2 name work
	if [[ -f $folder/vmlinuz && -d $folder/modules ]]; then
		say "$1: have $(<"$folder/version")"
		return
	fi
	if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
		complain "$1: needs apt-get and dpkg-deb; else put vmlinuz and modules/ into $folder"
		return 1
	fi
	if [[ -z $(image "$meta") || $(id -u) -eq 0 ]]; then
		update
	fi
	name=$(image "$meta")
	if [[ -z $name ]]; then
		complain "$1: the package lists have no $meta"
		return 1
	fi
	say "$1: downloading the Debian package $name"
	mkdir -p -- "$(dirname -- "$folder")"
	work=$(mktemp -d "$folder.XXXXXX")
	trash+=("$work")
	(cd -- "$work" && logged apt-get -q "${wait_for_lock[@]}" download "$name")
	dpkg-deb -x "$work"/linux-image-*.deb "$work/files"
	mkdir "$work/kernel"
	mv "$work"/files/boot/vmlinuz-* "$work/kernel/vmlinuz"
	mv "$work"/files/lib/modules/* "$work/kernel/modules"
	basename "$work"/linux-image-*.deb .deb >"$work/kernel/version"
	rm -rf -- "$folder"
	mv -T -- "$work/kernel" "$folder"
	say "$1: $(<"$folder/version") is in $folder"
}

package qemu-system-x86_64 qemu-system-x86
static_busybox
# The folders of incomplete downloads.
trash=()
trap 'rm -rf -- "${trash[@]}"' EXIT
kernel kernel linux-image-cloud-amd64
kernel kernel-6.12 linux-image-6.12-cloud-amd64
