package child

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// Version runs a program for its version: the first line with a number and the word version, otherwise the first line
// with a number.
func Version(path string, args ...string) string {
	out, _ := exec.Command(path, args...).CombinedOutput() // some end with an error after printing it
	var first string
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		switch {
		case !strings.ContainsAny(line, "0123456789"):
		case strings.HasPrefix(line, "Version"):
			return filepath.Base(path) + " " + line
		case first == "":
			first = line
		}
	}
	return first
}

// Machine describes the machine of the measurement.
func Machine() string {
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		kernel = []byte(runtime.GOOS)
	}
	return fmt.Sprintf("%s, %d cores, kernel %s, %s/%s, %s", processor(), runtime.NumCPU(), strings.TrimSpace(string(kernel)),
		runtime.GOOS, runtime.GOARCH, runtime.Version())
}

func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	for line := range strings.Lines(string(text)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}
