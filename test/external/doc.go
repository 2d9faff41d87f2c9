// Package external compares plugin k8s_external with that of CoreDNS: both servers have the same random clusters from a real
// API server, and answer questions for every name of the external zones, before and after changes. Input is objects of the
// API and Corefiles; output is the differences that no entry of a table explains.
//
// It has tests only, and may not import anything of plugin/. The tests need the programs of test/install.sh.
package external
