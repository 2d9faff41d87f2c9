#!/usr/bin/env bash
# Installs the programs that the tests run: dig, nft, iptables, conntrack, ip,
# ps, containerd with ctr, runc, the CNI plugins (cni), prometheus with promtool, and the DNS
# servers unbound, nsd, dnsmasq and named from Debian packages, etcd, the programs of
# Kubernetes, the kubelet's search lists (kubelet-dns), coredns, the names in PromQL
# (promql-names), helm and actionlint built from the Go module proxy, and kernels to boot
# (kernel/install.sh). The clients of test/clients are kdig, drill with ldns-test-edns, delv,
# c-ares (libcares), Node, Java (javac), dnspython and systemd-resolved from Debian packages;
# test/multicluster runs nslookup of busybox. gcc is for the race detector and, with musl-gcc, for programs that
# resolve names with glibc and musl, clang with llvm-strip for the program that answers in
# the kernel.
#
#   test/install.sh               everything
#   test/install.sh dig coredns   only these
#   test/install.sh --print-bin   print the folder that the binaries go to
#
# dnsperf, resperf and dnsdist, which only benchmarks use, rsvg-convert, which draws the
# pictures of the documents, and the parts of "make conformance" are installed only if they
# are named: Kubernetes' own suite (e2e.test) and the programs of its pods, agnhost and an
# archive of Debian packages (dig-image). The servers do not run as services.
#
# The binaries go to $NEARSIDE_TEST_BIN, else $XDG_CACHE_HOME/nearside/bin, else
# ~/.cache/nearside/bin. A binary is rebuilt only when its module files, its
# build flags or the Go toolchain changed since it was built.
set -euo pipefail

everything=(dig gcc musl-gcc clang nft iptables conntrack ip ps unbound nsd dnsmasq named containerd runc cni etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl kubelet-dns coredns promql-names prometheus helm actionlint busybox kdig drill delv libcares node javac dnspython systemd-resolved kernel)
named=(dnsperf resperf dnsdist rsvg-convert e2e.test agnhost dig-image)
built=(etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl kubelet-dns coredns promql-names helm actionlint e2e.test agnhost)

# The PATH of a user may lack the folders of system programs.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

say() { printf 'install.sh: %s\n' "$*"; }
complain() { printf 'install.sh: %s\n' "$*" >&2; }

# Without HOME, bash takes ~ from the password database. Go needs HOME as well.
if [[ -z ${HOME:-} ]]; then
	unset HOME
	HOME=~
	export HOME
fi
bin=${NEARSIDE_TEST_BIN:-${XDG_CACHE_HOME:-$HOME/.cache}/nearside/bin}
if [[ $bin != /* ]]; then
	complain "the folder for the binaries must be an absolute path, not '$bin'"
	exit 2
fi
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

# Time limit for the lock of another apt, in seconds.
lock_timeout=300

# update_packages runs apt-get update. It waits for the lock of the package lists, since
# apt-get waits only for those of dpkg.
update_packages() {
	local end=$((SECONDS + lock_timeout)) output
	while ! output=$(LC_ALL=C apt-get -q -o "DPkg::Lock::Timeout=$lock_timeout" update 2>&1); do
		printf '%s\n' "$output"
		if [[ $output != *'Could not get lock'* || $SECONDS -ge $end ]]; then
			return 1
		fi
		sleep 2
	done
}

# package PROGRAM DEBIAN_PACKAGE... installs a program, which may be a path, from Debian's packages.
package() {
	local program=$1
	shift
	if command -v "$program" >/dev/null; then
		say "$program: have $(command -v "$program")"
		return
	fi
	if [[ $(id -u) -ne 0 ]] || ! command -v apt-get >/dev/null; then
		complain "$program: missing; install the package that has it (Debian: apt-get install $*)"
		return 1
	fi
	say "$program: installing the Debian packages $*"
	local log
	log=$(mktemp)
	if ! (update_packages && DEBIAN_FRONTEND=noninteractive \
		apt-get -q -y --no-install-recommends -o "DPkg::Lock::Timeout=$lock_timeout" install "$@") >"$log" 2>&1; then
		cat "$log" >&2
		rm -f "$log"
		complain "$program: apt-get failed"
		return 1
	fi
	rm -f "$log"
}

# server PROGRAM DEBIAN_PACKAGE installs a server from Debian's packages, whose service has the name of
# the program, and prevents the package from starting it: only the tests and the benchmark run it, on
# other ports.
server() {
	local program=$1 policy=/usr/sbin/policy-rc.d
	if command -v "$program" >/dev/null; then
		package "$@"
		return
	fi
	if [[ $(id -u) -eq 0 && ! -e $policy ]]; then
		# Each part runs in its own shell, which removes the file at any exit.
		# shellcheck disable=SC2064
		trap "rm -f -- '$policy'" EXIT
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod 755 "$policy"
	fi
	package "$@"
	if command -v systemctl >/dev/null && ! systemctl --quiet disable "$program" >/dev/null 2>&1; then
		complain "$program: could not be disabled as a service; it may be started at the next boot"
	fi
}

# file PATH DEBIAN_PACKAGE... installs packages that have a file and no program.
file() {
	if [[ -e $1 ]]; then
		say "$2: have $1"
	else
		package "${1##*/}" "${@:2}"
	fi
}

# resolved makes systemd-resolved available without its installation, which would change the machine's resolver: its
# package is unpacked next to the binaries, and its libraries are installed.
resolved() {
	local name=systemd-resolved folder=$bin/.systemd-resolved libraries=()
	libraries=(/usr/lib/*/systemd/libsystemd-shared-*.so)
	file "${libraries[0]}" libsystemd-shared libssl3
	if [[ -x $bin/$name ]]; then
		say "$name: have $bin/$name"
	elif ! command -v apt-get >/dev/null; then
		complain "$name: missing; it is tested with the Debian package $name"
		return 1
	else
		say "$name: unpacking the Debian package $name"
		rm -rf -- "$folder"
		mkdir -p -- "$folder"
		cd -- "$folder"
		# Without root, the package lists are those that are there.
		if ! { apt-get -q download "$name" || { update_packages && apt-get -q download "$name"; }; } >log 2>&1; then
			cat log >&2
			complain "$name: apt-get failed"
			return 1
		fi
		dpkg -x "$name"_*.deb .
		rm -- "$name"_*.deb
		ln -sfn -- "$folder/lib/systemd/$name" "$bin/$name"
	fi
	if ldd "$bin/$name" | grep 'not found'; then
		complain "$name: libraries are missing"
		return 1
	fi
}

# flags NAME prints the build flags that only NAME has, one per line.
flags() {
	local version rest v
	case $1 in
	etcd | kubelet-dns | helm | actionlint | promql-names | agnhost) printf '%s\n' -ldflags '-s -w' ;;
	coredns) printf '%s\n' -tags grpcnotrace -ldflags '-s -w' ;;
	kube-apiserver | kube-controller-manager | kube-scheduler | kube-proxy | kubelet | kubectl | e2e.test)
		version=$(awk '$1 == "k8s.io/kubernetes" { print $2 }' go.mod)
		rest=${version#v*.}
		v=k8s.io/component-base/version
		printf '%s\n' -ldflags "-s -w -X $v.gitVersion=$version -X $v.gitMajor=1 -X $v.gitMinor=${rest%%.*} -X k8s.io/client-go/pkg/version.gitVersion=$version"
		;;
	esac
}

# sources PACKAGE prints the sources of a package in the module's own folder, since go.mod has
# no version of them.
sources() {
	if [[ $1 == ./* ]]; then
		cat -- "$1"/*.go
	fi
}

# build NAME MODULE_FOLDER PACKAGE [COMMAND...] builds a program, with "go build" or another command.
build() {
	local name=$1 folder=$here/$2 package=$3 command=(go build)
	if [[ $# -gt 3 ]]; then
		command=("${@:4}")
	fi
	if ! command -v go >/dev/null; then
		complain "$name: go is missing; install the Go toolchain that $2/go.mod asks for"
		return 1
	fi
	cd -- "$folder"
	export CGO_ENABLED=0 GOWORK=off
	local own=() stamp=$bin/.$name.stamp want start
	mapfile -t own < <(flags "$name")
	want=$( (go env GOVERSION GOOS GOARCH && printf '%s\n' "$package" "${own[@]}" && cat go.mod go.sum && sources "$package") | sha256sum | cut -d ' ' -f 1)
	is_built() { [[ -x $bin/$name && -f $stamp && $(<"$stamp") == "$want" ]]; }
	if is_built; then
		say "$name: up to date"
		return
	fi
	mkdir -p -- "$bin"
	if command -v flock >/dev/null; then
		exec 9>"$bin/.$name.lock"
		flock 9
		if is_built; then
			say "$name: up to date"
			return
		fi
	fi
	say "$name: building from $package in test/$2 (minutes when the build cache is empty)"
	start=$SECONDS
	# Build a new file and rename it, so that a running test never sees an incomplete one.
	"${command[@]}" -mod=readonly -buildvcs=false -trimpath "${own[@]}" -o "$bin/.$name.new" "$package"
	rm -f -- "$stamp"
	mv -f -- "$bin/.$name.new" "$bin/$name"
	printf '%s\n' "$want" >"$stamp"
	say "$name: built $bin/$name in $((SECONDS - start)) s"
}

# archive NAME DEBIAN_PACKAGE... makes NAME.tar in the folder of the binaries: the files of the packages and of all that
# they depend on, as the root of a file system. The same versions give the same bytes. Nothing is installed, and no script
# of a package runs.
archive() {
	local name=$1 work stamp want start=$SECONDS
	shift
	if ! command -v apt-get >/dev/null; then
		complain "$name: made from Debian packages, by apt-get, which is missing"
		return 1
	fi
	work=$(mktemp -d)
	# Each part runs in its own shell, which removes the folder at any exit.
	# shellcheck disable=SC2064
	trap "rm -rf -- '$work'" EXIT
	mkdir -p -- "$work/archives/partial" "$work/root"
	: >"$work/status" # nothing is installed: apt-get resolves all dependencies
	resolve() {
		apt-get -q -y --no-install-recommends -o "Dir::State::status=$work/status" -o "Dir::Cache::archives=$work/archives" \
			-o Debug::NoLocking=1 -o APT::Sandbox::User=root "$@"
	}
	if ! resolve --print-uris install "$@" >"$work/uris" 2>/dev/null; then
		update_packages >/dev/null
		resolve --print-uris install "$@" >"$work/uris"
	fi
	stamp=$bin/.$name.stamp
	want=$( (awk "/^'/ { print \$2, \$4 }" "$work/uris" | sort && declare -f archive) | sha256sum | cut -d ' ' -f 1)
	if [[ -f $bin/$name.tar && -f $stamp && $(<"$stamp") == "$want" ]]; then
		say "$name: up to date"
		return
	fi
	say "$name: downloading the Debian packages $* with their dependencies"
	if ! resolve --download-only install "$@" >"$work/log" 2>&1; then
		# The lists may name versions that the archive no longer has.
		update_packages >/dev/null
		resolve --download-only install "$@"
	fi
	local folder package
	for folder in bin sbin lib lib64; do
		mkdir -p -- "$work/root/usr/$folder"
		ln -s "usr/$folder" "$work/root/$folder"
	done
	for package in "$work"/archives/*.deb; do
		dpkg-deb --fsys-tarfile "$package" | tar -x -C "$work/root" --keep-directory-symlink --no-same-owner
	done
	rm -rf -- "$work"/root/usr/share/{doc,man,locale,info}
	mkdir -p -- "$work/root/etc" "$work/root/tmp"
	chmod 1777 "$work/root/tmp"
	# As the script of libc-bin does: without the file, glibc does not read /etc/hosts first.
	cp -- "$work/root/usr/share/libc-bin/nsswitch.conf" "$work/root/etc/nsswitch.conf"
	mkdir -p -- "$bin"
	tar -C "$work/root" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf "$work/new.tar" .
	rm -f -- "$stamp"
	mv -f -- "$work/new.tar" "$bin/$name.tar"
	printf '%s\n' "$want" >"$stamp"
	say "$name: made $bin/$name.tar of $(find "$work/archives" -name '*.deb' | wc -l) packages in $((SECONDS - start)) s"
}

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$here/install.sh"; }

chosen=()
for argument in "$@"; do
	case $argument in
	--print-bin)
		printf '%s\n' "$bin"
		exit
		;;
	-h | --help)
		usage
		exit
		;;
	*)
		if [[ " ${everything[*]} ${named[*]} " == *" $argument "* ]]; then
			chosen+=("$argument")
			continue
		fi
		complain "unknown argument '$argument'; choose from: ${everything[*]} ${named[*]}"
		exit 2
		;;
	esac
done
if [[ ${#chosen[@]} -eq 0 ]]; then
	chosen=("${everything[@]}")
fi

# part NAME installs one part.
part() {
	case $1 in
	dig) package dig bind9-dnsutils ;;
	gcc) package gcc gcc libc6-dev ;;
	musl-gcc) package musl-gcc musl-tools ;;
	clang)
		if [[ -e /usr/include/bpf/bpf_helpers.h ]]; then
			package clang clang && package llvm-strip llvm
		else
			package bpf_helpers.h clang llvm libbpf-dev linux-libc-dev
		fi
		;;
	nft) package nft nftables ;;
	iptables) package iptables iptables ;;
	conntrack) package conntrack conntrack ;;
	ip) package ip iproute2 ;;
	ps) package ps procps ;;
	unbound) server unbound unbound ;;
	nsd) server nsd nsd ;;
	dnsmasq) package dnsmasq dnsmasq-base ;; # the package without a service
	named) server named bind9 ;;
	dnsperf | resperf) package "$1" dnsperf ;;
	dnsdist) server dnsdist dnsdist ;;
	rsvg-convert) package rsvg-convert librsvg2-bin fonts-dejavu-core ;;
	etcd) build etcd kubernetes go.etcd.io/etcd/server/v3 ;;
	containerd) server containerd containerd ;;
	runc) package runc runc ;;
	cni) package /usr/lib/cni/ptp containernetworking-plugins ;;
	kube-apiserver | kube-controller-manager | kube-scheduler | kube-proxy | kubelet | kubectl)
		build "$1" kubernetes "k8s.io/kubernetes/cmd/$1"
		;;
	e2e.test) build e2e.test conformance/suite k8s.io/kubernetes/test/e2e go test -c ;;
	agnhost) build agnhost conformance/suite k8s.io/kubernetes/test/images/agnhost ;;
	dig-image) archive dig-image bind9-dnsutils dash coreutils libc-bin hostname curl ;;
	kubelet-dns) build kubelet-dns kubernetes ./kubelet-dns ;;
	coredns) build coredns coredns github.com/coredns/coredns ;;
	promql-names) build promql-names monitoring/promql ./ ;;
	prometheus) server prometheus prometheus ;; # and promtool
	helm) build helm helm helm.sh/helm/v4/cmd/helm ;;
	actionlint) build actionlint actionlint github.com/rhysd/actionlint/cmd/actionlint ;;
	busybox) package busybox busybox-static ;;
	kdig) package kdig knot-dnsutils ;;
	drill) package ldns-test-edns ldnsutils ;;
	delv) package delv bind9-dnsutils ;;
	libcares) file /usr/include/ares.h libc-ares-dev ;;
	node) package node nodejs ;;
	javac) package javac default-jdk-headless ;;
	dnspython) file /usr/lib/python3/dist-packages/dns/message.py python3-dnspython ;;
	systemd-resolved) resolved ;;
	kernel) "$here/kernel/install.sh" ;;
	esac
}

# parts NAME... installs parts, one after the other, and prints the names of those that fail to the file descriptor 3. Each part
# runs as a separate job, so that set -e applies inside it and a failed part does not prevent the others.
parts() {
	local name
	for name in "$@"; do
		part "$name" &
		wait $! || printf '%s\n' "$name" >&3
	done
}

# The packages are downloaded and unpacked while programs are built.
own=() packages=()
for name in "${chosen[@]}"; do
	if [[ " ${built[*]} " == *" $name "* ]]; then
		own+=("$name")
	else
		packages+=("$name")
	fi
done
failures=$(mktemp)
trap 'rm -f -- "$failures"' EXIT
parts "${packages[@]}" 3>>"$failures" &
installing=$!
parts "${own[@]}" 3>>"$failures"
wait "$installing"
mapfile -t failed <"$failures"
if [[ ${#failed[@]} -gt 0 ]]; then
	complain "not installed: ${failed[*]}"
	exit 1
fi
