// Command upstream runs Kubernetes' own EndpointSlice reconciler over a script of events.
//
// A script, read from stdin, has one Service and steps: pods that come or change, pods that go, and
// the nodes if they changed. After each step the reconciler has its turn as its controller would
// give it one. Writes are encoded, counted and kept in memory; nothing is sent anywhere. Printed is,
// for every step, what was written and the processor time of the turn alone.
//
// With the argument "nodes" it measures what a node event costs the topology cache instead.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"syscall"
	"time"
	"unsafe"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/endpointslice"
	"k8s.io/endpointslice/topologycache"
	"k8s.io/endpointslice/util"
	"k8s.io/klog/v2"
)

// Stamped at link time with the digest of this file, so that a changed file is built anew.
var source string

type step struct {
	Put   []*corev1.Pod  `json:"put"`
	Drop  []string       `json:"drop"`
	Nodes []*corev1.Node `json:"nodes"`
}

type script struct {
	Limit   int32           `json:"limit"`
	Service *corev1.Service `json:"service"`
	Steps   []step          `json:"steps"`
}

type result struct {
	Create      int   `json:"create"`
	Update      int   `json:"update"`
	Delete      int   `json:"delete"`
	Nanoseconds int64 `json:"nanoseconds"`
	Synced      bool  `json:"synced"`
}

// store is the one part of a client that the reconciler uses.
type store struct {
	kubernetes.Interface
	slices map[string]*discoveryv1.EndpointSlice
	made   int
	count  result
}

type discovery struct {
	discoveryclient.DiscoveryV1Interface
	store *store
}

type slices struct {
	discoveryclient.EndpointSliceInterface
	store *store
}

func (s *store) DiscoveryV1() discoveryclient.DiscoveryV1Interface { return discovery{store: s} }

func (d discovery) EndpointSlices(string) discoveryclient.EndpointSliceInterface {
	return slices{store: d.store}
}

func (s slices) Create(_ context.Context, slice *discoveryv1.EndpointSlice, _ metav1.CreateOptions) (*discoveryv1.EndpointSlice, error) {
	s.store.count.Create++
	s.store.made++
	slice.Name = fmt.Sprintf("%s%05d", slice.GenerateName, s.store.made)
	slice.UID = types.UID(slice.Name)
	return s.keep(slice)
}

func (s slices) Update(_ context.Context, slice *discoveryv1.EndpointSlice, _ metav1.UpdateOptions) (*discoveryv1.EndpointSlice, error) {
	s.store.count.Update++
	slice.UID = types.UID(slice.Name)
	return s.keep(slice)
}

func (s slices) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	s.store.count.Delete++
	delete(s.store.slices, name)
	return nil
}

func (s slices) keep(slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	slice.Generation++
	if _, err := slice.Marshal(); err != nil {
		return nil, err
	}
	s.store.slices[slice.Name] = slice
	return slice, nil
}

type silent struct{}

func (silent) Event(runtime.Object, string, string, string)                  {}
func (silent) Eventf(runtime.Object, string, string, string, ...interface{}) {}
func (silent) AnnotatedEventf(runtime.Object, map[string]string, string, string, string, ...interface{}) {
}

// processor is the processor time of this process so far.
func processor() int64 {
	var spent syscall.Timespec
	const clock = 2 // CLOCK_PROCESS_CPUTIME_ID
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&spent)), 0)
	return spent.Nano()
}

func run(given script) []result {
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	topology := topologycache.NewTopologyCache()
	kept := &store{slices: map[string]*discoveryv1.EndpointSlice{}}
	reconciler := endpointslice.NewReconciler(
		kept, corelisters.NewNodeLister(nodes), given.Limit, util.NewEndpointSliceTracker(), topology,
		silent{}, "endpointslice-controller.k8s.io", endpointslice.WithPreferSameTrafficDistributionEnabled(true),
	)
	pods := map[string]*corev1.Pod{}
	key := given.Service.Namespace + "/" + given.Service.Name
	var results []result
	for _, step := range given.Steps {
		sync := len(step.Put)+len(step.Drop) > 0
		if step.Nodes != nil {
			objects := make([]interface{}, 0, len(step.Nodes))
			for _, node := range step.Nodes {
				objects = append(objects, node)
			}
			must(nodes.Replace(objects, ""))
			topology.SetNodes(klog.Background(), step.Nodes)
			for _, overloaded := range topology.GetOverloadedServices() {
				sync = sync || overloaded == key
			}
		}
		for _, pod := range step.Put {
			pods[pod.Name] = pod
		}
		for _, name := range step.Drop {
			delete(pods, name)
		}
		kept.count = result{Synced: sync}
		if sync {
			kept.count.Nanoseconds = turn(reconciler, given.Service, pods, kept)
		}
		results = append(results, kept.count)
	}
	return results
}

func turn(reconciler *endpointslice.Reconciler, service *corev1.Service, pods map[string]*corev1.Pod, kept *store) int64 {
	some := make([]*corev1.Pod, 0, len(pods))
	for _, pod := range pods {
		some = append(some, pod)
	}
	sort.Slice(some, func(i, j int) bool { return some[i].Name < some[j].Name })
	there := make([]*discoveryv1.EndpointSlice, 0, len(kept.slices))
	for _, slice := range kept.slices {
		there = append(there, slice)
	}
	sort.Slice(there, func(i, j int) bool { return there[i].Name < there[j].Name })
	begun := processor()
	err := reconciler.Reconcile(klog.Background(), service, some, there, time.Time{})
	spent := processor() - begun
	must(err)
	return spent
}

type event struct {
	Nodes    []*corev1.Node `json:"nodes"`
	Services int            `json:"services"`
	PerZone  map[string]int `json:"per_zone"`
	Rounds   int            `json:"rounds"`
}

func measureNodes(given event) map[string]int64 {
	topology := topologycache.NewTopologyCache()
	for number := 0; number < given.Services; number++ {
		zones := topologycache.EndpointZoneInfo{}
		for zone, count := range given.PerZone {
			zones[zone] = count
		}
		topology.SetHints(fmt.Sprintf("default/web-%d", number), discoveryv1.AddressTypeIPv4, zones)
	}
	best := map[string]int64{}
	for round := 0; round < given.Rounds; round++ {
		begun := processor()
		topology.SetNodes(klog.Background(), given.Nodes)
		set := processor()
		topology.GetOverloadedServices()
		judged := processor()
		lowest(best, "set", set-begun)
		lowest(best, "judge", judged-set)
	}
	return best
}

func lowest(best map[string]int64, name string, value int64) {
	if known, there := best[name]; !there || value < known {
		best[name] = value
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	klog.SetLogger(logr.Discard())
	input := json.NewDecoder(os.Stdin)
	output := json.NewEncoder(os.Stdout)
	if len(os.Args) > 1 && os.Args[1] == "nodes" {
		var given event
		must(input.Decode(&given))
		must(output.Encode(measureNodes(given)))
		return
	}
	var given script
	must(input.Decode(&given))
	must(output.Encode(run(given)))
}
