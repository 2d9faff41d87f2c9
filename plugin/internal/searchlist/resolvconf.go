package searchlist

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxFile is the size in bytes from which the kubelet refuses a resolv.conf.
const maxFile = 10 << 20

// ReadResolvConf returns the search list of a resolv.conf as the kubelet reads it: the last "search" line counts, "."
// and the final dot of a name are removed. Unlike resolvers, the kubelet ignores "domain" lines and comments at the end
// of a line. It returns an error where the kubelet refuses to start pods with the file.
func ReadResolvConf(file string) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, err
	}
	if len(text) == maxFile {
		return nil, fmt.Errorf("%s has more than the %d bytes that the kubelet reads", file, maxFile-1)
	}
	search, line, err := parseResolvConf(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s:%d: %w", file, line, err)
	}
	return search, nil
}

// parseResolvConf returns the search list, or an error and its line.
func parseResolvConf(text string) (search []string, line int, err error) {
	for l := range strings.SplitSeq(text, "\n") {
		line++
		fields := strings.Fields(l)
		if len(fields) == 0 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if len(fields) == 1 {
				return nil, line, errors.New("nameserver without an address, with which the kubelet starts no pod")
			}
		case "search":
			search = nil
			for _, s := range fields[1:] {
				if s != "." {
					search = append(search, strings.TrimSuffix(s, "."))
				}
			}
		}
	}
	return search, line, nil
}
