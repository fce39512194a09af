package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"time"
	"unsafe"

	cadvisor "github.com/google/cadvisor/info/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/record"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/resourceplugin/v1alpha1"
	"k8s.io/kubernetes/pkg/kubelet/checkpointmanager"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"

	"github.com/kubewharf/katalyst-core/cmd/katalyst-agent/app/agent"
	"github.com/kubewharf/katalyst-core/pkg/agent/orm"
	ormcheckpoint "github.com/kubewharf/katalyst-core/pkg/agent/orm/checkpoint"
	"github.com/kubewharf/katalyst-core/pkg/agent/orm/executor"
	cpudynamic "github.com/kubewharf/katalyst-core/pkg/agent/qrm-plugins/cpu/dynamicpolicy"
	cpunative "github.com/kubewharf/katalyst-core/pkg/agent/qrm-plugins/cpu/nativepolicy"
	memorydynamic "github.com/kubewharf/katalyst-core/pkg/agent/qrm-plugins/memory/dynamicpolicy"
	"github.com/kubewharf/katalyst-core/pkg/agent/resourcemanager/fetcher/kubelet/topology"
	"github.com/kubewharf/katalyst-core/pkg/metrics"
	"github.com/kubewharf/katalyst-core/pkg/util/kubelet/podresources"
)

const timeout = 10 * time.Second

var components = map[string]agent.InitFunc{
	"cpu-dynamic":    cpudynamic.NewDynamicPolicy,
	"cpu-native":     cpunative.NewNativePolicy,
	"memory-dynamic": memorydynamic.NewDynamicPolicy,
}

// plugins serves the plug-ins that -run names, each on a socket in -sockets.
func plugins(arguments []string) error {
	flags, settings := newFlags("plugins"), pluginSettings{}
	run := flags.String("run", "cpu-dynamic,memory-dynamic", "plug-ins, separated by commas")
	hardware := flags.String("machine", "", "file with the machine")
	sockets := flags.String("sockets", "", "directory of the sockets")
	pods := flags.String("pods", "", "file with the pods of the node")
	flags.StringVar(&settings.state, "state", "", "directory of the state files")
	flags.IntVar(&settings.reservedCPUs, "reserved-cpus", 0, "")
	flags.BoolVar(&settings.reclaim, "reclaim", false, "")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	settings.directories = []string{*sockets}
	info, err := readComputer(*hardware)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(settings.state, 0o755); err != nil {
		return err
	}
	conf, err := settings.configuration()
	if err != nil {
		return err
	}
	agentContext, ctx := newContext(info, *pods), untilSignal()
	var running sync.WaitGroup
	for _, name := range strings.Split(*run, ",") {
		resource, _, _ := strings.Cut(name, "-")
		_, component, err := components[name](agentContext, conf, nil, "qrm_"+resource+"_plugin")
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		running.Add(1)
		go func() {
			defer running.Done()
			component.Run(ctx)
		}()
	}
	<-ctx.Done()
	running.Wait()
	return nil
}

// recorder stands for the executor of the manager, which would write to control groups of containers.
type recorder struct {
	sync.Mutex
	path string
	last map[string]string
}

func (r *recorder) UpdateContainerResources(
	pod *v1.Pod, container *v1.Container, resources map[string]*pluginapi.ResourceAllocationInfo,
) error {
	r.Lock()
	defer r.Unlock()
	line, err := json.Marshal(map[string]any{"pod": pod.UID, "container": container.Name, "resources": resources})
	if err != nil {
		return err
	}
	key := string(pod.UID) + "/" + container.Name
	if r.last[key] == string(line) {
		return nil
	}
	r.last[key] = string(line)
	file, err := os.OpenFile(r.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = fmt.Fprintln(file, string(line))
	return err
}

// manager runs the resource manager over the plug-ins in -sockets; -updates gets what it would set on containers.
func manager(arguments []string) error {
	flags := newFlags("manager")
	hardware := flags.String("machine", "", "file with the machine")
	sockets := flags.String("sockets", "", "directory of the plug-ins, and of the checkpoint")
	pods := flags.String("pods", "", "file with the pods of the node")
	podResources := flags.String("pod-resources", "", "socket of the pod-resources API")
	topologyPolicy := flags.String("policy", "best-effort", "topology policy")
	updates := flags.String("updates", "", "file for the properties of containers")
	names := flags.String("names", "", "resource names, a=b,c=d")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	info, err := readComputer(*hardware)
	if err != nil {
		return err
	}
	conf, err := (pluginSettings{}).configuration()
	if err != nil {
		return err
	}
	conf.PluginRegistrationDir = *sockets
	conf.ORMPodResourcesSocket = "unix:" + *podResources
	conf.ORMRconcilePeriod = time.Second
	conf.TopologyPolicyName = *topologyPolicy
	for _, each := range strings.Split(*names, ",") {
		if requested, served, found := strings.Cut(each, "="); found {
			conf.ORMResourceNamesMap[requested] = served
		}
	}
	meta := newContext(info, *pods).MetaServer
	built, err := orm.NewManager(filepath.Join(*sockets, "kubelet.sock"), metrics.DummyMetrics{}, meta, conf)
	if err != nil {
		return err
	}
	var writer executor.Executor = &recorder{path: *updates, last: map[string]string{}}
	private := reflect.ValueOf(built).Elem().FieldByName("resourceExecutor")
	*(*executor.Executor)(unsafe.Pointer(private.UnsafeAddr())) = writer
	ctx := untilSignal()
	watcher := pluginmanager.NewPluginManager(*sockets, &record.FakeRecorder{})
	watcher.AddHandler(built.GetHandlerType(), built)
	ready := kubeletconfig.NewSourcesReady(func(sets.String) bool { return true })
	go watcher.Run(ready, ctx.Done())
	built.Run(ctx)
	<-ctx.Done()
	return nil
}

func podResources(arguments []string) error {
	flags := newFlags("pod-resources")
	socket := flags.String("socket", "", "socket of the pod-resources API")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	client, connection, err := podresources.GetV1Client("unix:"+*socket, timeout, 1<<24)
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	listed, err := client.List(ctx, &podresourcesv1.ListPodResourcesRequest{})
	if err != nil {
		return err
	}
	allocatable, err := client.GetAllocatableResources(ctx, &podresourcesv1.AllocatableResourcesRequest{})
	if err != nil {
		return err
	}
	return writeJSON(map[string]any{"list": listed, "allocatable": allocatable})
}

func zones(arguments []string) error {
	flags := newFlags("zones")
	hardware := flags.String("machine", "", "file with the machine")
	socket := flags.String("socket", "", "socket of the pod-resources API")
	pods := flags.String("pods", "", "file with the pods of the node")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	info, err := readComputer(*hardware)
	if err != nil {
		return err
	}
	conf, err := (pluginSettings{}).configuration()
	if err != nil {
		return err
	}
	nodes := func() ([]cadvisor.Node, error) { return info.Topology, nil }
	built, err := topology.NewPodResourcesServerTopologyAdapter(newContext(info, *pods).MetaServer, conf.QoSConfiguration,
		[]string{*socket}, nil, map[string]string{}, nil, nodes, topology.GenericPodResourcesFilter(conf.QoSConfiguration),
		podresources.GetV1Client, nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := built.Run(ctx, func() {}); err != nil {
		return err
	}
	found, err := built.GetTopologyZones(ctx)
	if err != nil {
		return err
	}
	return writeJSON(found)
}

// checkpoint fails if the checksum is wrong or an allocation is not valid.
func checkpoint(arguments []string) error {
	flags := newFlags("checkpoint")
	path := flags.String("file", "", "checkpoint to read")
	write := flags.String("write", "", "file to write the same entries to")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	reader, err := checkpointmanager.NewCheckpointManager(filepath.Dir(*path))
	if err != nil {
		return err
	}
	read := ormcheckpoint.New(nil)
	if err := reader.GetCheckpoint(filepath.Base(*path), read); err != nil {
		return err
	}
	found, again := []map[string]any{}, []ormcheckpoint.PodResourcesEntry{}
	for _, entry := range read.GetData() {
		info := &pluginapi.ResourceAllocationInfo{}
		if err := json.Unmarshal([]byte(entry.AllocationInfo), info); err != nil {
			return err
		}
		found = append(found, map[string]any{
			"pod": entry.PodUID, "container": entry.ContainerName, "resource": entry.ResourceName, "info": info,
		})
		text, err := json.Marshal(info)
		if err != nil {
			return err
		}
		entry.AllocationInfo = string(text)
		again = append(again, entry)
	}
	if *write != "" {
		writer, err := checkpointmanager.NewCheckpointManager(filepath.Dir(*write))
		if err != nil {
			return err
		}
		if err := writer.CreateCheckpoint(filepath.Base(*write), ormcheckpoint.New(again)); err != nil {
			return err
		}
	}
	return writeJSON(found)
}
