// Package validity determines how long an answer may be served: until a time, while the data that it is made from do not change,
// and while a session vouches for it. Input is times, Generations and Vouchers; output is whether the answer is fresh. It has the
// clock of these times, Now. Of the project it imports only package vouch; it has no packets, no sockets and no logging.
package validity
