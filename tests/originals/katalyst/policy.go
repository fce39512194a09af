package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"sort"
	"time"
	"unsafe"

	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/resourceplugin/v1alpha1"

	"github.com/kubewharf/katalyst-api/pkg/plugins/skeleton"
	"github.com/kubewharf/katalyst-core/cmd/katalyst-agent/app/agent"
	cpudynamic "github.com/kubewharf/katalyst-core/pkg/agent/qrm-plugins/cpu/dynamicpolicy"
	memorydynamic "github.com/kubewharf/katalyst-core/pkg/agent/qrm-plugins/memory/dynamicpolicy"
)

// world is a machine, and pods that come to it and go in this order.
type world struct {
	Resource     string   `json:"resource"`
	Machine      computer `json:"machine"`
	ReservedCPUs int      `json:"reserved_cpus"`
	ReservedGiB  uint64   `json:"reserved_gib"`
	Reclaim      bool     `json:"reclaim"`
	Steps        []step   `json:"steps"`
}

// step is a request of a container, or the removal of a pod.
type step struct {
	Remove      string            `json:"remove"`
	Pod         string            `json:"pod"`
	Container   string            `json:"container"`
	Type        string            `json:"type"`
	Request     float64           `json:"request"`
	Annotations map[string]string `json:"annotations"`
}

type failure struct {
	Error string `json:"error"`
}

// hint is a list of nodes and whether it is preferred: [[0, 1], true].
type hint [2]any

type allocation struct {
	Result   string  `json:"result"`
	Quantity float64 `json:"quantity"`
}

// stepAnswer: Hints is a failure, null without preference, or a list of hints. Hint is the merged hint that Allocate
// got. Allocated is a failure, null if the container gets nothing, or an allocation.
type stepAnswer struct {
	Hints     any      `json:"hints"`
	Hint      []uint64 `json:"hint"`
	Refused   bool     `json:"refused,omitempty"`
	Allocated any      `json:"allocated"`
}

// worldAnswer: the allocations by pod and container after the last step, and after ramp-up.
type worldAnswer struct {
	RampUp float64           `json:"ramp_up_seconds"`
	Steps  []stepAnswer      `json:"steps"`
	Then   map[string]string `json:"then"`
	After  map[string]string `json:"after"`
}

// policy answers worlds. The policies run in this process, without their sockets and background tasks.
func policy([]string) error {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	input, output := bufio.NewReaderSize(os.Stdin, 1<<20), bufio.NewWriter(os.Stdout)
	defer output.Flush()
	for {
		line, err := input.ReadBytes('\n')
		if len(line) > 1 {
			var asked world
			if err := json.Unmarshal(line, &asked); err != nil {
				return err
			}
			answer, err := asked.play()
			if err != nil {
				return err
			}
			if err := json.NewEncoder(output).Encode(answer); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func (w world) play() (worldAnswer, error) {
	answer := worldAnswer{Steps: []stepAnswer{}}
	directory, err := os.MkdirTemp("", "katalyst-policy-")
	if err != nil {
		return answer, err
	}
	defer os.RemoveAll(directory)
	plugin, err := w.plugin(directory)
	if err != nil {
		return answer, err
	}
	transition := transitionPeriod(plugin)
	if transition != nil {
		answer.RampUp = transition.Seconds()
	}
	for _, each := range w.Steps {
		if each.Remove != "" {
			_, err := plugin.RemovePod(context.Background(), &pluginapi.RemovePodRequest{PodUid: each.Remove})
			answer.Steps = append(answer.Steps, stepAnswer{Allocated: failureOf(err)})
			continue
		}
		answer.Steps = append(answer.Steps, w.take(plugin, each))
	}
	if answer.Then, err = allocations(plugin, w.Resource); err != nil {
		return answer, err
	}
	if transition != nil {
		*transition = -time.Hour // ramp-up ends now
	}
	// The first answer after the end of ramp-up still has the CPUs of before.
	if _, err = allocations(plugin, w.Resource); err != nil {
		return answer, err
	}
	answer.After, err = allocations(plugin, w.Resource)
	return answer, err
}

func (w world) plugin(directory string) (skeleton.QRMPlugin, error) {
	info, err := w.Machine.info()
	if err != nil {
		return nil, err
	}
	settings := pluginSettings{
		directories: []string{directory}, state: directory,
		reservedCPUs: w.ReservedCPUs, reservedGiB: w.ReservedGiB, reclaim: w.Reclaim,
	}
	conf, err := settings.configuration()
	if err != nil {
		return nil, err
	}
	build := map[string]agent.InitFunc{"cpu": cpudynamic.NewDynamicPolicy, "memory": memorydynamic.NewDynamicPolicy}
	_, component, err := build[w.Resource](newContext(info, ""), conf, nil, "qrm_"+w.Resource)
	if err != nil {
		return nil, err
	}
	wrapped := component.(*agent.PluginWrapper).GenericPlugin.(*skeleton.PluginRegistrationWrapper)
	return wrapped.GenericPlugin.(skeleton.QRMPlugin), nil
}

// transitionPeriod is the duration of ramp-up of the CPU policy, which is a private field.
func transitionPeriod(plugin skeleton.QRMPlugin) *time.Duration {
	field := reflect.ValueOf(plugin).Elem().FieldByName("transitionPeriod")
	if !field.IsValid() {
		return nil
	}
	return (*time.Duration)(unsafe.Pointer(field.UnsafeAddr()))
}

// take asks for hints, merges them as a topology manager does for one resource, and allocates with the result.
func (w world) take(plugin skeleton.QRMPlugin, asked step) stepAnswer {
	response, err := plugin.GetTopologyHints(context.Background(), w.request(asked))
	if err != nil {
		return stepAnswer{Hints: failure{err.Error()}, Refused: true}
	}
	request, answer := w.request(asked), stepAnswer{}
	request.Hint = &pluginapi.TopologyHint{Preferred: true}
	if found := response.ResourceHints[w.Resource]; found != nil {
		listed := []hint{}
		for _, each := range found.Hints {
			listed = append(listed, hint{each.Nodes, each.Preferred})
		}
		answer.Hints = listed
		if len(found.Hints) == 0 {
			answer.Refused = true
			return answer
		}
		request.Hint = best(found.Hints)
		answer.Hint = request.Hint.Nodes
	}
	allocated, err := plugin.Allocate(context.Background(), request)
	if err != nil {
		answer.Allocated = failure{err.Error()}
	} else if allocated.AllocationResult != nil {
		info := allocated.AllocationResult.ResourceAllocation[w.Resource]
		answer.Allocated = allocation{info.AllocationResult, info.AllocatedQuantity}
	}
	return answer
}

// request is a new message each time, because the policies remove annotations from it.
func (w world) request(asked step) *pluginapi.ResourceRequest {
	annotations := map[string]string{}
	for name, value := range asked.Annotations {
		annotations[name] = value
	}
	return &pluginapi.ResourceRequest{
		PodUid: asked.Pod, PodNamespace: "default", PodName: asked.Pod, ContainerName: asked.Container,
		ContainerType: pluginapi.ContainerType(pluginapi.ContainerType_value[asked.Type]), ResourceName: w.Resource,
		ResourceRequests: map[string]float64{w.Resource: asked.Request}, Annotations: annotations,
		Labels: map[string]string{},
	}
}

// best: a preferred hint before others, then the fewest nodes, then the lowest numbers.
func best(hints []*pluginapi.TopologyHint) *pluginapi.TopologyHint {
	ordered := append([]*pluginapi.TopologyHint{}, hints...)
	sort.SliceStable(ordered, func(i, j int) bool {
		a, b := ordered[i], ordered[j]
		if a.Preferred != b.Preferred {
			return a.Preferred
		}
		if len(a.Nodes) != len(b.Nodes) {
			return len(a.Nodes) < len(b.Nodes)
		}
		return fmt.Sprint(a.Nodes) < fmt.Sprint(b.Nodes)
	})
	return ordered[0]
}

func allocations(plugin skeleton.QRMPlugin, resource string) (map[string]string, error) {
	response, err := plugin.GetResourcesAllocation(context.Background(), &pluginapi.GetResourcesAllocationRequest{})
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for pod, containers := range response.PodResources {
		for container, resources := range containers.ContainerResources {
			found[pod+"/"+container] = resources.ResourceAllocation[resource].AllocationResult
		}
	}
	return found, nil
}

func failureOf(err error) any {
	if err == nil {
		return nil
	}
	return failure{err.Error()}
}
