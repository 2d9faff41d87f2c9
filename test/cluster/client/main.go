// Command client is the program in the images of the tests' pods: the pause container of every pod, and a DNS client that
// tests control over HTTP. Its servers and search list are those of the /etc/resolv.conf that the kubelet wrote.
//
//	client pause    waits for SIGTERM
//	client serve    answers on port 9999
//
//	GET /resolv.conf                     the file
//	GET /lookup?name=N[&kind=srv|addr]   result of Go's resolver, with the search list
//	GET /ask?name=N[&type=T]...          the answer of one server, as text; the search list is not used
//	POST /load/ID?name=N&rate=R...       starts a load of R queries per second; # in the name is the number of the query
//	DELETE /load/ID                      ends the load, and returns its result as JSON
//
// network=tcp and server=ADDRESS[:PORT] set protocol and server of /ask and /load; the defaults are UDP and the first
// server of the file.
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "pause" {
		pause()
		return
	}
	if len(os.Args) != 2 || os.Args[1] != "serve" {
		fmt.Fprintln(os.Stderr, "usage: client pause | client serve")
		os.Exit(2)
	}
	log.Fatal(http.ListenAndServe(":9999", newHandler()))
}

// pause is the process of a pod's namespaces. It ends on SIGTERM.
func pause() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	<-signals
}
