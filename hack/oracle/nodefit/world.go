package main

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/dynamic-resource-allocation/resourceslice/tracker"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/kubernetes/pkg/scheduler/util/assumecache"
)

// world is what kube-scheduler sees: its cache of nodes and pods, and informers for everything else.
type world struct {
	client    *fake.Clientset
	informers informers.SharedInformerFactory
	nodes     []*v1.Node
	pods      []*v1.Pod
	classes   []*resourceapi.DeviceClass
	// The snapshot that plugins see; replaced as pods are assumed.
	*cache.Snapshot
}

func newWorld(asked question, waiting *v1.Pod, assumed []*v1.Pod) (*world, error) {
	made := &world{}
	names := sets.New[string]()
	var bound []*v1.Pod
	objects := []runtime.Object{waiting}
	for _, pod := range assumed {
		objects = append(objects, pod)
	}
	for _, raw := range append(append([]json.RawMessage{}, asked.Nodes...), asked.Objects...) {
		object, err := decode(raw)
		if err != nil {
			return nil, err
		}
		switch object := object.(type) {
		case *v1.Node:
			made.nodes = append(made.nodes, object)
			names.Insert(object.Name)
		case *v1.Pod:
			bound = append(bound, object)
		case *resourceapi.DeviceClass:
			made.classes = append(made.classes, object)
		}
		objects = append(objects, object)
	}
	for _, pod := range bound {
		// kube-scheduler's snapshot holds pods that have not ended, on nodes that exist
		if names.Has(pod.Spec.NodeName) && pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed {
			made.pods = append(made.pods, pod)
		}
	}
	made.client = fake.NewClientset(objects...)
	made.informers = informers.NewSharedInformerFactory(made.client, 0)
	made.Snapshot = cache.NewSnapshot(made.pods, made.nodes)
	return made, nil
}

// assume counts the pod on the node, as kube-scheduler's cache does before the pod is bound.
func (w *world) assume(pod *v1.Pod, node string) {
	pod = pod.DeepCopy()
	pod.Spec.NodeName = node
	w.pods = append(w.pods, pod)
	w.Snapshot = cache.NewSnapshot(w.pods, w.nodes)
}

// scheduler runs the profile on the world. Start the informers before it is asked.
func (w *world) scheduler(ctx context.Context, profile *config.KubeSchedulerProfile) (framework.Framework, error) {
	claims := assumecache.NewAssumeCache(klog.Background(), w.informers.Resource().V1().ResourceClaims().Informer(), "ResourceClaim", "", nil)
	slices, err := tracker.StartTracker(ctx, tracker.Options{SliceInformer: w.informers.Resource().V1().ResourceSlices(), KubeClient: w.client})
	if err != nil {
		return nil, err
	}
	manager := dynamicresources.NewDRAManager(ctx, claims, slices, w.informers)
	// kube-scheduler's own event handlers do this; NodeResourcesFit asks for it
	if resolver, ok := manager.DeviceClassResolver().(*extendedresourcecache.ExtendedResourceCache); ok {
		for _, class := range w.classes {
			resolver.OnAdd(class, true)
		}
	}
	return frameworkruntime.NewFramework(ctx, plugins.NewInTreeRegistry(), profile,
		frameworkruntime.WithClientSet(w.client),
		frameworkruntime.WithInformerFactory(w.informers),
		frameworkruntime.WithSnapshotSharedLister(w),
		frameworkruntime.WithSharedDRAManager(manager),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(w.informers.Storage().V1().CSINodes().Lister())),
		frameworkruntime.WithMetricsRecorder(metrics.NewMetricsAsyncRecorder(1000, 1<<40, ctx.Done())),
		frameworkruntime.WithPodNominator(nil),
		frameworkruntime.WithParallelism(1))
}

var _ fwk.SharedLister = &world{}

// decode reads an object. Assume caches compare resource versions, so each object has one.
func decode(raw []byte) (runtime.Object, error) {
	object, _, err := clientscheme.Codecs.UniversalDeserializer().Decode(raw, nil, nil)
	if err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	if accessor.GetResourceVersion() == "" {
		accessor.SetResourceVersion("1")
	}
	return object, nil
}

func decodePod(raw []byte) (*v1.Pod, error) {
	object, err := decode(raw)
	if err != nil {
		return nil, err
	}
	pod, ok := object.(*v1.Pod)
	if !ok {
		return nil, fmt.Errorf("a Pod is needed, not %T", object)
	}
	return pod, nil
}
