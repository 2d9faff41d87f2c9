// Package corefiles starts the Corefiles that managed services, distributions and manuals publish, unchanged, in nearside's programs
// and in CoreDNS, beside a real API server, and compares the answers. Each file of testdata names its source.
package corefiles
