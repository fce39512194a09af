package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	cadvisor "github.com/google/cadvisor/info/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	katalystbase "github.com/kubewharf/katalyst-core/cmd/base"
	"github.com/kubewharf/katalyst-core/cmd/katalyst-agent/app/agent"
	"github.com/kubewharf/katalyst-core/cmd/katalyst-agent/app/options"
	"github.com/kubewharf/katalyst-core/pkg/config"
	"github.com/kubewharf/katalyst-core/pkg/metaserver"
	metaagent "github.com/kubewharf/katalyst-core/pkg/metaserver/agent"
	"github.com/kubewharf/katalyst-core/pkg/metaserver/agent/kubeletconfig"
	"github.com/kubewharf/katalyst-core/pkg/metaserver/agent/pod"
	"github.com/kubewharf/katalyst-core/pkg/metaserver/kcc"
	metricspool "github.com/kubewharf/katalyst-core/pkg/metrics/metrics-pool"
	"github.com/kubewharf/katalyst-core/pkg/util/machine"
)

// computer describes the hardware: all logical CPUs, and the bytes of memory of each NUMA node.
type computer struct {
	CPUs []struct {
		ID     int `json:"id"`
		Core   int `json:"core"`
		Socket int `json:"socket"`
		NUMA   int `json:"numa"`
	} `json:"cpus"`
	Memory []uint64 `json:"memory"`
}

func readComputer(path string) (*machine.KatalystMachineInfo, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var found computer
	if err := json.Unmarshal(content, &found); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return found.info()
}

// info is the computer as Katalyst sees it.
func (c computer) info() (*machine.KatalystMachineInfo, error) {
	details, cores, sockets := machine.CPUDetails{}, sets.NewInt(), sets.NewInt()
	siblings := make([]map[int][]int, len(c.Memory))
	for _, cpu := range c.CPUs {
		details[cpu.ID] = machine.CPUInfo{NUMANodeID: cpu.NUMA, SocketID: cpu.Socket, CoreID: cpu.Core}
		cores.Insert(cpu.Core)
		sockets.Insert(cpu.Socket)
		if siblings[cpu.NUMA] == nil {
			siblings[cpu.NUMA] = map[int][]int{}
		}
		siblings[cpu.NUMA][cpu.Core] = append(siblings[cpu.NUMA][cpu.Core], cpu.ID)
	}
	hardware := &cadvisor.MachineInfo{NumCores: len(c.CPUs), NumPhysicalCores: cores.Len(), NumSockets: sockets.Len()}
	memory := map[int]uint64{}
	for id, size := range c.Memory {
		node := cadvisor.Node{Id: id, Memory: size}
		for core, threads := range siblings[id] {
			socket := details[threads[0]].SocketID
			node.Cores = append(node.Cores, cadvisor.Core{Id: core, Threads: threads, SocketID: socket})
		}
		hardware.Topology = append(hardware.Topology, node)
		hardware.MemoryCapacity += size
		memory[id] = size
	}
	extra, err := machine.GenerateDummyExtraTopology(len(c.Memory))
	if err != nil {
		return nil, err
	}
	return &machine.KatalystMachineInfo{
		MachineInfo: hardware,
		CPUTopology: &machine.CPUTopology{
			NumCPUs: len(c.CPUs), NumCores: cores.Len(), NumSockets: sockets.Len(), NumNUMANodes: len(c.Memory),
			CPUDetails: details,
		},
		MemoryTopology:    &machine.MemoryTopology{MemoryDetails: memory},
		ExtraCPUInfo:      &machine.ExtraCPUInfo{},
		ExtraNetworkInfo:  &machine.ExtraNetworkInfo{},
		ExtraTopologyInfo: extra,
	}, nil
}

// podsFile is a source of pods: a JSON list in a file, which is read for each question. Without a path it has no pods.
type podsFile struct {
	pod.PodFetcherStub
	path string
}

func (f *podsFile) pods() ([]*v1.Pod, error) {
	if f.path == "" {
		return nil, nil
	}
	content, err := os.ReadFile(f.path)
	if err != nil {
		return nil, err
	}
	var found []*v1.Pod
	return found, json.Unmarshal(content, &found)
}

func (f *podsFile) GetPodList(_ context.Context, filter func(*v1.Pod) bool) ([]*v1.Pod, error) {
	all, err := f.pods()
	found := []*v1.Pod{}
	for _, each := range all {
		if filter == nil || filter(each) {
			found = append(found, each)
		}
	}
	return found, err
}

func (f *podsFile) GetPod(_ context.Context, uid string) (*v1.Pod, error) {
	all, err := f.pods()
	for _, each := range all {
		if string(each.UID) == uid {
			return each, nil
		}
	}
	return nil, fmt.Errorf("unknown pod %s (%v)", uid, err)
}

func (f *podsFile) GetContainerSpec(uid, name string) (*v1.Container, error) {
	found, err := f.GetPod(context.Background(), uid)
	if err != nil {
		return nil, err
	}
	for i := range found.Spec.Containers {
		if found.Spec.Containers[i].Name == name {
			return &found.Spec.Containers[i], nil
		}
	}
	return nil, fmt.Errorf("unknown container %s of pod %s", name, uid)
}

// newContext is what Katalyst's agent hands to its components.
func newContext(info *machine.KatalystMachineInfo, pods string) *agent.GenericContext {
	kubelet := kubeletconfigv1beta1.KubeletConfiguration{
		KubeReserved:   map[string]string{"cpu": "2"}, // the native policy reads its reserved CPUs there
		SystemReserved: map[string]string{"cpu": "0"},
	}
	return &agent.GenericContext{
		GenericContext: &katalystbase.GenericContext{EmitterPool: metricspool.DummyMetricsEmitterPool{}},
		MetaServer: &metaserver.MetaServer{
			MetaAgent: &metaagent.MetaAgent{
				PodFetcher:           &podsFile{path: pods},
				KatalystMachineInfo:  info,
				KubeletConfigFetcher: kubeletconfig.NewFakeKubeletConfigFetcher(kubelet),
			},
			ConfigurationManager: &kcc.DummyConfigurationManager{},
		},
	}
}

// pluginSettings are the settings of Katalyst's agent that the tests vary.
type pluginSettings struct {
	directories  []string
	state        string
	reservedCPUs int
	reservedGiB  uint64
	reclaim      bool
}

func (s pluginSettings) configuration() (*config.Configuration, error) {
	found, err := options.NewOptions().Config()
	if err != nil {
		return nil, err
	}
	found.QRMPluginSocketDirs = s.directories
	found.GenericQRMPluginConfiguration.StateFileDirectory = s.state
	found.UseKubeletReservedConfig = false
	found.ReservedCPUCores = s.reservedCPUs
	found.ReservedMemoryGB = s.reservedGiB
	found.GetDynamicConfiguration().EnableReclaim = s.reclaim
	return found, nil
}
