// Package answers has packed DNS messages and the store of the process: Query parses a query and builds its key, Answer
// is a packed reply that is patched for each client, Validity bounds how long an answer may be served, and Store has
// entries in one budget of bytes. Input is datagrams and dns.Msg; output is facts about queries, and replies as bytes.
// Lookups and patches allocate nothing. Of the project it imports only package wire, and packages caller, dso and
// searchlist for their EDNS options; it has no sockets and no logging.
package answers
