// Package fakeapi is an HTTP server which answers LIST, WATCH and GET as a
// kube-apiserver does, for tests and benchmarks of programs that follow a
// cluster.
//
// In goes cluster state, as Kubernetes objects given to Put, Delete, Replace
// and Clear: core/v1 Services, Pods, Nodes and Namespaces,
// discovery.k8s.io/v1 EndpointSlices, and of the custom resources ServiceImports
// and ServiceExports (multicluster.x-k8s.io) and ClusterProperties
// (about.k8s.io). Nothing is validated, so objects which
// a real server would never hold can be served as well. Out come lists, watch
// streams and single objects over plain HTTP, in protobuf or JSON, whole or as
// PartialObjectMetadata, with the errors a real server gives. Custom resources
// are served in all versions of their API or in some, and as JSON only.
//
// What it keeps of a real server's behaviour:
//   - one resource version counter for everything, which only grows;
//   - watches from a resource version, out of a bounded history, and "410
//     Expired" once the history no longer reaches back so far;
//   - streaming lists (sendInitialEvents) which end with an annotated bookmark,
//     plain bookmarks at an interval, and timeoutSeconds;
//   - label and field selectors on lists and watches, where an object which
//     stops matching is DELETED and one which begins to match is ADDED;
//   - pages (limit and continue) which all show the state at the first page;
//   - gzip for large lists;
//   - discovery of the groups of custom resources and of their versions.
//
// What it leaves out: writes over HTTP, other discovery, authentication,
// priority and fairness, the moments when a real server has carried out a
// change of a definition in part (429 from lists, discovery that is late), and
// waiting for a resource version which is still to come (that
// is refused at once, as a real server does after three seconds).
//
// Faults for tests are methods of Server: DropWatches, Freeze, Hang, Refuse,
// Forbid, Expire, DisableWatchList and, for custom resources, ServeVersions.
// Requests and OpenWatches count what clients did.
package fakeapi
