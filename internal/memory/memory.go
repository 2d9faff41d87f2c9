// Package memory returns memory that the process does not use to the operating system. It imports no other package of the project.
package memory

import "runtime/debug"

// Release returns garbage, and the pages of the program's file. It takes as long as a garbage collection.
func Release() error {
	debug.FreeOSMemory()
	return ReleaseProgram()
}
