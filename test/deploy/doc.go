// Package deploy tests what users apply: the kustomizations and the chart in the folder deploy. In go kubectl and helm,
// which render them, and the programs; out comes what an API server and the programs say of it. It has nothing but
// tests, and nothing may import it.
package deploy
