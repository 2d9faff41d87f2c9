package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// SocketMemory returns how many pages the buffers of all UDP sockets hold, of /proc/net/sockstat.
func (r Root) SocketMemory() (pages int64, err error) {
	path := filepath.Join(r.Proc, "net/sockstat")
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "UDP:" {
			continue
		}
		for i := 1; i+1 < len(fields); i += 2 {
			if fields[i] == "mem" {
				return strconv.ParseInt(fields[i+1], 10, 64)
			}
		}
	}
	return 0, fmt.Errorf("%s has no memory of UDP", path)
}

// Counter returns a counter of /proc/net/snmp or /proc/net/netstat, such as ("netstat", "TcpExt",
// "IPReversePathFilter"). Both hold pairs of lines: one of names, one of values.
func (r Root) Counter(file, group, name string) (int64, error) {
	path := filepath.Join(r.Proc, "net", file)
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != group+":" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i := range min(len(names), len(fields)) {
			if names[i] == name {
				return strconv.ParseInt(fields[i], 10, 64)
			}
		}
	}
	return 0, fmt.Errorf("%s has no %s %s", path, group, name)
}
