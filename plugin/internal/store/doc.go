// Package store has the answers of the process: AppendKey builds the key of a query, Answer is a packed reply that is patched
// for each client, Entry is an Answer with its validity, and Store has entries in one budget of bytes. Input is queries of
// package wire and dns.Msg; output is replies as bytes. Lookups and patches allocate nothing. Of the project it imports only
// packages wire, validity, searchlist, push and vouch; it has no sockets and no logging.
package store
