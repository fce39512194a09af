// Runs the analyzer, the sorters and the executors of Crane's agent for cases: one JSON object a line on stdin, one
// answer a line on stdout. compare.py writes the cases. Pods and policies are decoded by the types of Crane itself.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"sync"
	"time"
	"unsafe"

	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1beta1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/testing"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1alpha2"
	"k8s.io/klog/v2"

	ensurance "github.com/gocrane/api/ensurance/v1alpha1"
	craneinformers "github.com/gocrane/api/pkg/generated/informers/externalversions"
	"github.com/gocrane/crane/pkg/common"
	"github.com/gocrane/crane/pkg/ensurance/analyzer"
	"github.com/gocrane/crane/pkg/ensurance/executor"
	"github.com/gocrane/crane/pkg/ensurance/executor/podinfo"
	"github.com/gocrane/crane/pkg/ensurance/executor/sort"
	"google.golang.org/grpc"
)

const node = "node"

// input is one case. While pods are restored, `down_pods` are the pods of throttling; `ratios` are the minimum and the
// step by name of the pod; `marks` are quantities by action and metric; `failing` are ids of containers
// that the runtime refuses and names of pods that the API refuses to evict; `absent` pods are not in the cache.
type input struct {
	Kind     string                         `json:"kind"`
	Sorter   string                         `json:"sorter"`
	Pods     []v1.Pod                       `json:"pods"`
	Series   map[string][]series            `json:"series"`
	Ratios   map[string][2]int32            `json:"ratios"`
	Excess   float64                        `json:"excess"`
	Marks    map[string]map[string][]string `json:"marks"`
	DownPods []string                       `json:"down_pods"`
	Absent   []string                       `json:"absent"`
	Failing  []string                       `json:"failing"`
	NodeQOS  []ensurance.NodeQOS            `json:"node_qos"`
	PodQOS   []ensurance.PodQOS             `json:"pod_qos"`
	Actions  []ensurance.AvoidanceAction    `json:"actions"`
	Cycles   []map[string]float64           `json:"cycles"`
}

type series struct {
	Labels map[string]string `json:"labels"`
	Value  float64           `json:"value"`
}

type call struct {
	Container string `json:"container"`
	Quota     int64  `json:"quota"`
}

// cycle is the decision of one cycle of the analyzer: watermarks by action and metric, and pods by action.
type cycle struct {
	Notified bool                           `json:"notified"`
	Disable  bool                           `json:"disable"`
	Restore  bool                           `json:"restore"`
	Marks    map[string]map[string][]string `json:"marks"`
	Down     map[string][2]uint64           `json:"down"`
	Up       map[string][2]uint64           `json:"up"`
	Evict    map[string]*int32              `json:"evict"`
}

type answer struct {
	Error    string             `json:"error,omitempty"`
	Panicked bool               `json:"panicked,omitempty"`
	Failed   bool               `json:"failed,omitempty"`
	Order    []string           `json:"order,omitempty"`
	Evicted  map[string]int64   `json:"evicted,omitempty"`
	Calls    []call             `json:"calls,omitempty"`
	Gaps     map[string]float64 `json:"gaps,omitempty"`
	Missed   []string           `json:"missed,omitempty"`
	Cycles   []cycle            `json:"cycles,omitempty"`
}

// recorder is a container runtime that keeps the quotas of its calls.
type recorder struct {
	cri.RuntimeServiceClient
	failing map[string]bool
	calls   []call
}

func (r *recorder) UpdateContainerResources(_ context.Context, in *cri.UpdateContainerResourcesRequest, _ ...grpc.CallOption) (*cri.UpdateContainerResourcesResponse, error) {
	if r.failing[in.ContainerId] {
		return nil, errors.New("refused by the case")
	}
	r.calls = append(r.calls, call{in.ContainerId, in.Linux.CpuQuota})
	return &cri.UpdateContainerResourcesResponse{}, nil
}

func names(of []string) map[string]bool {
	found := map[string]bool{}
	for _, each := range of {
		found[each] = true
	}
	return found
}

func state(of map[string][]series) map[string][]common.TimeSeries {
	found := map[string][]common.TimeSeries{}
	for name, all := range of {
		for _, each := range all {
			one := common.TimeSeries{Samples: []common.Sample{{Value: each.Value}}}
			for key, value := range each.Labels {
				one.Labels = append(one.Labels, common.Label{Name: key, Value: value})
			}
			found[name] = append(found[name], one)
		}
	}
	return found
}

func contexts(in *input, kind podinfo.ActionType, only map[string]bool) []podinfo.PodContext {
	found := []podinfo.PodContext{}
	seen := state(in.Series)
	for i := range in.Pods {
		if only != nil && !only[in.Pods[i].Name] {
			continue
		}
		ratio := in.Ratios[in.Pods[i].Name]
		action := &ensurance.AvoidanceAction{Spec: ensurance.AvoidanceActionSpec{Throttle: &ensurance.ThrottleAction{
			CPUThrottle: ensurance.CPUThrottle{MinCPURatio: ratio[0], StepCPURatio: ratio[1]},
		}}}
		found = append(found, podinfo.BuildPodActionContext(&in.Pods[i], seen, action, kind))
	}
	return found
}

func watermarks(of map[string][]string) executor.Watermarks {
	found := executor.Watermarks{}
	for metric, values := range of {
		heap := executor.Watermark{}
		for _, each := range values { // compare.py sorts them, so that the slice is a heap
			heap = append(heap, resource.MustParse(each))
		}
		found[executor.WatermarkMetric(metric)] = &heap
	}
	return found
}

// setUnexported sets a field that only Crane's own ActionExecutor can set.
func setUnexported(of *executor.ExecuteContext, name string, value interface{}) {
	field := reflect.ValueOf(of).Elem().FieldByName(name)
	reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem().Set(reflect.ValueOf(value))
}

func execute(in *input, out *answer) {
	absent, failing := names(in.Absent), names(in.Failing)
	client := fake.NewSimpleClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods()
	for i := range in.Pods {
		if !absent[in.Pods[i].Name] {
			_ = pods.Informer().GetIndexer().Add(&in.Pods[i])
		}
	}
	var mutex sync.Mutex
	out.Evicted = map[string]int64{}
	client.PrependReactor("create", "pods", func(action testing.Action) (bool, runtime.Object, error) {
		eviction, ok := action.(testing.CreateAction).GetObject().(*policy.Eviction)
		if !ok {
			return true, nil, fmt.Errorf("unexpected %T", action.(testing.CreateAction).GetObject())
		}
		if failing[eviction.Name] {
			return true, nil, errors.New("refused by the case")
		}
		mutex.Lock()
		defer mutex.Unlock()
		out.Evicted[eviction.Name] = *eviction.DeleteOptions.GracePeriodSeconds
		return true, nil, nil
	})
	container := &recorder{failing: failing}
	ctx := &executor.ExecuteContext{Client: client, PodLister: pods.Lister(), RuntimeClient: container}
	setUnexported(ctx, "stateMap", state(in.Series))
	setUnexported(ctx, "executeExcessPercent", in.Excess)
	down, up := watermarks(in.Marks["down"]), watermarks(in.Marks["up"])
	var sorted []podinfo.PodContext
	defer func() {
		out.Panicked = recover() != nil
		out.Calls = container.calls
		out.Gaps = map[string]float64{}
		gaps := map[string]executor.Gaps{"evict": ctx.ToBeEvict, "throttle": ctx.ToBeThrottleDown, "restore": ctx.ToBeThrottleUp}
		for metric, gap := range gaps[in.Kind] {
			if gap > 1e300 {
				out.Missed = append(out.Missed, string(metric))
			} else {
				out.Gaps[string(metric)] = gap
			}
		}
		for _, each := range sorted {
			out.Order = append(out.Order, each.Key.Name)
		}
	}()
	var err error
	switch in.Kind {
	case "evict":
		sorted = contexts(in, podinfo.Evict, nil)
		err = (&executor.EvictExecutor{EvictPods: sorted, EvictWatermark: watermarks(in.Marks["evict"])}).Avoid(ctx)
	case "throttle":
		sorted = contexts(in, podinfo.ThrottleDown, nil)
		run := executor.ThrottleExecutor{ThrottleDownPods: sorted, ThrottleDownWatermark: down, ThrottleUpWatermark: up}
		err = run.Avoid(ctx)
	case "restore":
		sorted = contexts(in, podinfo.ThrottleUp, nil)
		run := executor.ThrottleExecutor{
			ThrottleUpPods: sorted, ThrottleUpWatermark: up, ThrottleDownWatermark: down,
			ThrottleDownPods: contexts(in, podinfo.ThrottleDown, names(in.DownPods)),
		}
		err = run.Restore(ctx)
	}
	out.Failed = err != nil
}

func quantities(of executor.Watermarks) map[string][]string {
	found := map[string][]string{}
	for metric, values := range of {
		for _, each := range *values {
			found[string(metric)] = append(found[string(metric)], each.String())
		}
	}
	return found
}

func ratios(of executor.ThrottlePods) map[string][2]uint64 {
	found := map[string][2]uint64{}
	for _, each := range of {
		found[each.Key.Name] = [2]uint64{each.CPUThrottle.MinCPURatio, each.CPUThrottle.StepCPURatio}
	}
	return found
}

func analyze(in *input, out *answer) {
	defer func() { out.Panicked = recover() != nil }()
	client := fake.NewSimpleClientset()
	core := informers.NewSharedInformerFactory(client, 0).Core().V1()
	crane := craneinformers.NewSharedInformerFactory(nil, 0).Ensurance().V1alpha1()
	_ = core.Nodes().Informer().GetIndexer().Add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	for i := range in.Pods {
		_ = core.Pods().Informer().GetIndexer().Add(&in.Pods[i])
	}
	for i := range in.NodeQOS {
		_ = crane.NodeQOSs().Informer().GetIndexer().Add(&in.NodeQOS[i])
	}
	for i := range in.PodQOS {
		_ = crane.PodQOSs().Informer().GetIndexer().Add(&in.PodQOS[i])
	}
	for i := range in.Actions {
		_ = crane.AvoidanceActions().Informer().GetIndexer().Add(&in.Actions[i])
	}
	decisions := make(chan executor.AvoidanceExecutor, 1)
	agent := analyzer.NewAnomalyAnalyzer(client, node, core.Pods(), core.Nodes(), crane.NodeQOSs(), crane.PodQOSs(),
		crane.AvoidanceActions(), nil, decisions)
	for _, values := range in.Cycles {
		time.Sleep(time.Microsecond) // a cool-down of 0 s is over only when the clock has moved
		all := map[string][]series{}
		for metric, value := range values {
			all[metric] = []series{{Value: value}}
		}
		agent.Analyze(state(all))
		found := cycle{Evict: map[string]*int32{}}
		select {
		case made := <-decisions:
			found.Notified = true
			found.Disable, found.Restore = made.ScheduleExecutor.ToBeDisable, made.ScheduleExecutor.ToBeRestore
			found.Marks = map[string]map[string][]string{
				"down":  quantities(made.ThrottleExecutor.ThrottleDownWatermark),
				"up":    quantities(made.ThrottleExecutor.ThrottleUpWatermark),
				"evict": quantities(made.EvictExecutor.EvictWatermark),
			}
			found.Down = ratios(made.ThrottleExecutor.ThrottleDownPods)
			found.Up = ratios(made.ThrottleExecutor.ThrottleUpPods)
			for _, each := range made.EvictExecutor.EvictPods {
				found.Evict[each.Key.Name] = each.DeletionGracePeriodSeconds
			}
		default:
		}
		out.Cycles = append(out.Cycles, found)
	}
}

func run(line []byte) (out answer) {
	var in input
	if err := json.Unmarshal(line, &in); err != nil {
		return answer{Error: err.Error()}
	}
	switch in.Kind {
	case "sort":
		pods := contexts(&in, podinfo.Evict, nil)
		sorters := map[string]func([]podinfo.PodContext){
			"cpu": sort.CpuUsageSort, "mem": sort.MemUsageSort, "general": sort.GeneralSorter,
		}
		sorters[in.Sorter](pods)
		for _, each := range pods {
			out.Order = append(out.Order, each.Key.Name)
		}
	case "cycles":
		analyze(&in, &out)
	default:
		execute(&in, &out)
	}
	return
}

func main() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		if err := answers.Encode(run(lines.Bytes())); err != nil {
			panic(err)
		}
	}
	if err := lines.Err(); err != nil {
		panic(err)
	}
}
