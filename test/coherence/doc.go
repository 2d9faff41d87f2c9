// Package coherence proves the promise of coherent node caches by a history: real programs serve random queries while a real
// API server changes, and every answer is compared with the states that clusterdns had within the last second. README.md
// describes the history, the checker, the faults, and the mutations of the programs that it has detected.
package coherence
