// Command asker is the program in the images of the tests' pods: the pause container of every pod, and a client whose
// test says over HTTP what to ask. It takes its servers and search path from the /etc/resolv.conf that the kubelet
// wrote.
//
//	asker pause    waits until it is told to end
//	asker serve    answers on port 9999
//
//	GET /resolv.conf                     the file
//	GET /lookup?name=N[&kind=srv|addr]   what Go's resolver finds, with the search path
//	GET /ask?name=N[&type=T]...          the answer of one server, as text; the name is taken as it is
//	POST /load/ID?name=N&rate=R...       begins to ask R times a second; # in the name is the number of the query
//	DELETE /load/ID                      ends that, and says as JSON what became of every query
//
// network=tcp and server=ADDRESS[:PORT] change how and whom /ask and /load ask: by UDP, the first server of the file.
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
		fmt.Fprintln(os.Stderr, "usage: asker pause | asker serve")
		os.Exit(2)
	}
	log.Fatal(http.ListenAndServe(":9999", newHandler()))
}

// pause holds the namespaces of a pod until it is told to end.
func pause() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	<-signals
}
