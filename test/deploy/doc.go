// Package deploy tests the folder deploy: its kustomizations and its chart. Input is kubectl and helm, which render
// them, and the programs; output is the verdict of an API server and of the programs. It has only tests, and nothing may
// import it.
package deploy
