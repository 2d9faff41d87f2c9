package memory

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// ReleaseProgram removes the pages of the program's file from the resident memory of the process: most of them have code
// and tables that only a start or a reload needs. They stay in the kernel's page cache, which reclaims pages that no
// process maps before others, and a later use costs a minor fault.
func ReleaseProgram() error {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	defer func() { _ = smaps.Close() }()
	mappings, err := cleanMappings(smaps, program)
	if err != nil {
		return fmt.Errorf("/proc/self/smaps: %w", err)
	}
	for _, m := range mappings {
		// unix.Madvise has a slice as its argument, and no slice of Go is at this address.
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise: %w", errno)
		}
	}
	return nil
}

// mapping is a range of addresses.
type mapping struct{ start, end uintptr }

// cleanMappings returns the mappings of a file that are not writable and have no anonymous page: a page that a relocation,
// a debugger or a probe has changed would be lost. smaps is the text of /proc/PID/smaps, proc(5).
func cleanMappings(smaps io.Reader, file string) (clean []mapping, err error) {
	var m mapping
	ofFile := false
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		switch {
		case len(fields) >= 5 && !strings.HasSuffix(fields[0], ":"): // the first line of a mapping
			if _, err := fmt.Sscanf(fields[0], "%x-%x", &m.start, &m.end); err != nil {
				return nil, fmt.Errorf("invalid mapping %q: %w", fields[0], err)
			}
			ofFile = strings.HasSuffix(lines.Text(), " "+file) && !strings.Contains(fields[1], "w")
		case ofFile && len(fields) == 3 && fields[0] == "Anonymous:" && fields[1] == "0":
			clean = append(clean, m)
		}
	}
	return clean, lines.Err()
}
