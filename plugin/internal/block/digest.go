package block

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	"github.com/coredns/caddy/caddyfile"
)

// Digest returns a digest of the block in the Corefile, with its zones, its directives and the imported ones. Comments, spaces and
// other blocks make no difference. In a test without servers it is zero.
func (b *Block) Digest() ([sha256.Size]byte, error) {
	var none [sha256.Size]byte
	if b.conf.instance == nil || b.conf.instance.Caddyfile() == nil {
		return none, nil
	}
	input := b.conf.instance.Caddyfile()
	blocks, err := caddyfile.Parse(input.Path(), bytes.NewReader(input.Body()), nil)
	if err != nil {
		return none, fmt.Errorf("parse %s: %w", input.Path(), err)
	}
	if b.index >= len(blocks) {
		return none, fmt.Errorf("parse %s: %d server blocks, want more than %d", input.Path(), len(blocks), b.index)
	}
	return digest(blocks[b.index]), nil
}

func digest(block caddyfile.ServerBlock) (sum [sha256.Size]byte) {
	h := sha256.New()
	fmt.Fprintf(h, "%q\n", block.Keys)
	for _, directive := range slices.Sorted(maps.Keys(block.Tokens)) {
		last := caddyfile.Token{}
		for _, t := range block.Tokens[directive] {
			if t.Line != last.Line || t.File != last.File {
				fmt.Fprintln(h)
			}
			fmt.Fprintf(h, "%q ", t.Text)
			last = t
		}
	}
	h.Sum(sum[:0])
	return sum
}
