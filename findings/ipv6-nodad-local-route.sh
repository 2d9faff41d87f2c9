#!/usr/bin/env bash
# Linux (seen with 6.18): the kernel acknowledges a new IPv6 address, also one with "nodad", before the host has the local route of the
# address. A work queue adds the route some time later. With IPv4, the local route is there when the request returns.
#
# Until then "ip route get" shows for the address the prefix route of the interface, by which packets leave as if
# another host had the address. "nodad" suggests that there is nothing to wait for, since it leaves out duplicate
# address detection; the work queue that does the detection also adds the route. A program that adds an address and uses it at once
# has to wait until "ip route get ADDRESS" names a route of the type local.
#
# Needs iproute2 and root. It works in a network namespace of its own, and exits with 0 while the kernel behaves so.
set -euo pipefail
if [[ ${1:-} != inside ]]; then
	exec unshare --net -- "$BASH" "$0" inside
fi
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
uname -sr
ip -V

ip link add one type veth peer name two
ip link set one up
ip link set two up
sleep 1

# lookups COMMAND... prints how many of 200 addresses have a local route right after they were added, in one process of ip.
lookups() {
	local prefix=$1 length=$2 i
	shift 2
	for i in {1..200}; do
		printf 'address add %s%s/%s dev one %s\nroute get %s%s\n' "$prefix" "$i" "$length" "$*" "$prefix" "$i"
	done >"$work/batch"
	ip -batch "$work/batch" >"$work/output"
	grep -c '^local ' "$work/output" || true
}

four=$(lookups 10.9.0. 16)
echo "IPv4: $four of 200 addresses have their local route at once"
six=200
for try in {1..10}; do
	count=$(lookups "fd00:$try::" 64 nodad)
	echo "IPv6 with nodad: $count of 200"
	if ((count < six)); then
		six=$count
	fi
	if ((six < 200)); then
		break
	fi
done
grep -v '^local ' "$work/output" | grep '^fd00' | head -n 1 || true
sleep 2
late=0
for i in {1..200}; do
	if [[ $(ip route get "fd00:$try::$i") == local* ]]; then
		late=$((late + 1))
	fi
done
echo "IPv6 with nodad, two seconds later: $late of 200"
((four == 200 && six < 200 && late == 200))
