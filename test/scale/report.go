package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// row is a figure in the report.
type row struct{ what, format string }

// phaseRows returns the figures of measure in the order of the report.
func phaseRows() (all []row) {
	for _, phase := range []string{phaseStart, phaseRelist, phaseRestart, phaseUpdate} {
		for _, r := range []row{{took, "%.2f"}, {spent, "%.2f"}, {received, "%.1f"}, {rest, "%.0f"}, {peak, "%.0f"}, {growth, "%.2f"}} {
			if phase != phaseUpdate || r.what != took { // that is the time of the writes
				all = append(all, row{figure(phase, r.what), r.format})
			}
		}
	}
	for _, r := range []row{{events, "%.0f"}, {wrote, "%.1f"}, {late, "%.0f"}, {perEvent, "%.0f"}, {eventBytes, "%.0f"}} {
		all = append(all, row{figure(phaseUpdate, r.what), r.format})
	}
	return append(all, row{changesMade, "%.0f"}, row{fromWrite50, "%.2f"}, row{fromWrite99, "%.2f"}, row{fromRequest50, "%.2f"},
		row{fromRequest99, "%.2f"}, row{otherRate, "%.0f"}, row{otherLost, "%.0f"}, row{otherPerAnswer, "%.1f"})
}

// report writes the table of a size.
func report(w io.Writer, s size, rows []row, f figures) error {
	var text strings.Builder
	fmt.Fprintf(&text, "\n%d nodes, %d Services, %d endpoints; rolling update in %s; %s.\n\n", s.cluster.Nodes, s.cluster.Services, s.cluster.Endpoints, s.roll, memory())
	fmt.Fprintf(&text, "| %s | %s | %s | CoreDNS to %s |\n|---|---|---|---|\n", s.name, nameClusterDNS, nameCoreDNS, nameClusterDNS)
	for _, r := range rows {
		ratio := ""
		if own, peer := f[r.what][nameClusterDNS], f[r.what][nameCoreDNS]; own > 0 && peer > 0 {
			ratio = fmt.Sprintf("%.2f", peer/own)
		}
		fmt.Fprintf(&text, "| %s | %s | %s | %s |\n", r.what, f.cell(r, nameClusterDNS), f.cell(r, nameCoreDNS), ratio)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// cell returns a figure, "" if the server does not have it.
func (f figures) cell(r row, server string) string {
	if v, measured := f[r.what][server]; measured {
		return fmt.Sprintf(r.format, v)
	}
	return ""
}

// memory describes the memory of the machine.
func memory() string {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return "unknown memory"
	}
	var kib [2]int
	for line := range strings.Lines(string(text)) {
		for i, key := range []string{"MemTotal:", "MemAvailable:"} {
			if value, found := strings.CutPrefix(line, key); found {
				_, _ = fmt.Sscan(value, &kib[i]) // the kernel writes a number
			}
		}
	}
	return fmt.Sprintf("machine with %d MiB of memory, %d MiB available afterwards", kib[0]>>10, kib[1]>>10)
}
