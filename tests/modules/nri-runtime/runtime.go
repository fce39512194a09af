package main

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrigen "github.com/containerd/nri/pkg/runtime-tools/generate"
	validator "github.com/containerd/nri/plugins/default-validator/builtin"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-tools/generate"
)

type adjust = api.ContainerAdjustment

// pod is a pod sandbox.
type pod struct {
	ID          string            `json:"id"`
	UID         string            `json:"uid"`
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	// Parent is the parent control group, which shows the QoS class; Resources are those of all containers.
	Parent    string                `json:"cgroup_parent,omitempty"`
	Resources *rspec.LinuxResources `json:"resources,omitempty"`
}

func (p *pod) nri() *api.PodSandbox {
	return &api.PodSandbox{
		Id: p.ID, Name: p.Name, Uid: p.UID, Namespace: p.Namespace, Labels: p.Labels, Annotations: p.Annotations,
		RuntimeHandler: "runc",
		Linux:          &api.LinuxPodSandbox{CgroupParent: p.Parent, PodResources: api.FromOCILinuxResources(p.Resources, nil)},
	}
}

// container is a container with its OCI spec, which has the adjustments and updates of plug-ins.
type container struct {
	ID      string            `json:"id"`
	Pod     string            `json:"pod"`
	Name    string            `json:"name"`
	Labels  map[string]string `json:"labels,omitempty"`
	Spec    *rspec.Spec       `json:"spec"`
	Running bool              `json:"running"`
}

func (c *container) nri() *api.Container {
	spec := c.Spec
	made := &api.Container{
		Id: c.ID, PodSandboxId: c.Pod, Name: c.Name, Labels: c.Labels, Annotations: spec.Annotations,
		State: api.ContainerState_CONTAINER_CREATED, Mounts: api.FromOCIMounts(spec.Mounts),
		Hooks: api.FromOCIHooks(spec.Hooks), Linux: &api.LinuxContainer{},
	}
	if c.Running {
		made.State = api.ContainerState_CONTAINER_RUNNING
	}
	if spec.Process != nil {
		made.Args, made.Env = spec.Process.Args, spec.Process.Env
	}
	if spec.Linux != nil {
		made.Linux.Namespaces = api.FromOCILinuxNamespaces(spec.Linux.Namespaces)
		made.Linux.Devices = api.FromOCILinuxDevices(spec.Linux.Devices)
		made.Linux.Resources = api.FromOCILinuxResources(spec.Linux.Resources, nil)
		made.Linux.CgroupsPath = spec.Linux.CgroupsPath
	}
	return made
}

// generator changes the container's spec.
func (c *container) generator() *nrigen.Generator {
	return nrigen.SpecGenerator(&generate.Generator{Config: c.Spec})
}

// update is a change of a container's resources that a plug-in asked for.
type update struct {
	ID        string                `json:"id"`
	Resources *rspec.LinuxResources `json:"resources"`
}

type eviction struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

// runtime has the pods and containers of a node, and passes what happens to them to the plug-ins.
type runtime struct {
	sync.Mutex
	nri        *adaptation.Adaptation
	out        *lines
	pods       map[string]*pod
	containers map[string]*container
	failing    []string
}

func newRuntime(out *lines) *runtime {
	return &runtime{out: out, pods: map[string]*pod{}, containers: map[string]*container{}}
}

// open starts to serve plug-ins once the first command has been done: a runtime knows its containers before.
func (r *runtime) open(socket string, config *validator.DefaultValidatorConfig) error {
	made, err := adaptation.New("nri-runtime", "1.0.0", r.synchronize, r.updateContainers,
		adaptation.WithSocketPath(socket),
		adaptation.WithPluginPath(socket+".plugins"),
		adaptation.WithPluginConfigPath(socket+".conf"),
		adaptation.WithMetrics(&counter{out: r.out}),
		adaptation.WithDefaultValidator(config),
	)
	r.nri = made
	return err
}

var verbs = map[string]func(*runtime, context.Context, *command, *answer) error{
	"load":       (*runtime).load,
	"dump":       (*runtime).dump,
	"timeout":    (*runtime).timeout,
	"fail":       (*runtime).fail,
	"run pod":    (*runtime).runPod,
	"stop pod":   (*runtime).stopPod,
	"remove pod": (*runtime).removePod,
	"create":     (*runtime).create,
	"update":     (*runtime).update,
	"stop":       (*runtime).stop,
	"remove":     (*runtime).remove,
}

func (r *runtime) do(c *command) *answer {
	made := &answer{}
	verb, known := verbs[c.Do]
	if !known {
		made.Error = fmt.Sprintf("unknown command %q", c.Do)
		return made
	}
	if c.Do != "load" {
		r.Lock()
		defer r.Unlock()
	}
	if err := verb(r, context.Background(), c, made); err != nil {
		made.Error = err.Error()
	}
	return made
}

// timed adds the duration of a request to the answer.
func (a *answer) timed(began time.Time) {
	a.Ms = float64(time.Since(began).Nanoseconds()) / 1e6
}

// load takes over pods and containers that ran before this runtime started, and then listens.
func (r *runtime) load(_ context.Context, c *command, _ *answer) error {
	for _, each := range c.Pods {
		r.pods[each.ID] = each
	}
	for _, each := range c.Containers {
		r.containers[each.ID] = each
	}
	return r.nri.Start()
}

func (r *runtime) dump(_ context.Context, _ *command, a *answer) error {
	for _, each := range r.pods {
		a.Pods = append(a.Pods, each)
	}
	for _, each := range r.containers {
		a.Containers = append(a.Containers, each)
	}
	sort.Slice(a.Pods, func(i, j int) bool { return a.Pods[i].ID < a.Pods[j].ID })
	sort.Slice(a.Containers, func(i, j int) bool { return a.Containers[i].ID < a.Containers[j].ID })
	return nil
}

func (r *runtime) timeout(_ context.Context, c *command, _ *answer) error {
	adaptation.SetPluginRequestTimeout(time.Duration(c.Timeout * float64(time.Second)))
	return nil
}

// fail names containers of which each later update fails.
func (r *runtime) fail(_ context.Context, c *command, _ *answer) error {
	r.failing = c.Fail
	return nil
}

func (r *runtime) runPod(ctx context.Context, c *command, a *answer) error {
	defer a.timed(time.Now())
	r.pods[c.Pod.ID] = c.Pod
	err := r.nri.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: c.Pod.nri()})
	if err != nil {
		delete(r.pods, c.Pod.ID)
	}
	return err
}

func (r *runtime) stopPod(ctx context.Context, c *command, a *answer) error {
	found, err := r.podOf(c.ID)
	if err != nil {
		return err
	}
	defer a.timed(time.Now())
	return r.nri.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: found.nri()})
}

func (r *runtime) removePod(ctx context.Context, c *command, a *answer) error {
	found, err := r.podOf(c.ID)
	if err != nil {
		return err
	}
	defer a.timed(time.Now())
	delete(r.pods, c.ID)
	return r.nri.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: found.nri()})
}

// create creates and starts a container. Without it, an error leaves no container, and the plug-ins hear of its end.
func (r *runtime) create(ctx context.Context, c *command, a *answer) error {
	made := c.Container
	sandbox, err := r.podOf(made.Pod)
	if err != nil {
		return err
	}
	began := time.Now()
	given, err := r.nri.CreateContainer(ctx, &api.CreateContainerRequest{Pod: sandbox.nri(), Container: made.nri()})
	a.timed(began)
	if err == nil {
		err = made.generator().Adjust(given.Adjust)
	}
	if err != nil {
		r.undo(ctx, sandbox, made)
		return err
	}
	r.containers[made.ID] = made
	a.Container = made
	a.Updates, _ = r.apply(given.Update)
	for _, each := range given.Evict {
		a.Evictions = append(a.Evictions, &eviction{each.ContainerId, each.Reason})
	}
	return r.start(ctx, sandbox, made)
}

func (r *runtime) start(ctx context.Context, sandbox *pod, made *container) error {
	after := &api.PostCreateContainerRequest{Pod: sandbox.nri(), Container: made.nri()}
	if err := r.nri.PostCreateContainer(ctx, after); err != nil {
		return err
	}
	if err := r.nri.StartContainer(ctx, &api.StartContainerRequest{Pod: sandbox.nri(), Container: made.nri()}); err != nil {
		return err
	}
	made.Running = true
	return r.nri.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: sandbox.nri(), Container: made.nri()})
}

// undo does what containerd does after a failed creation.
func (r *runtime) undo(ctx context.Context, sandbox *pod, made *container) {
	stopped, err := r.nri.StopContainer(ctx, &api.StopContainerRequest{Pod: sandbox.nri(), Container: made.nri()})
	if err == nil {
		r.apply(stopped.Update)
	}
	_ = r.nri.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: sandbox.nri(), Container: made.nri()})
}

// update is a change of resources that the kubelet asks for: plug-ins may change it, and other containers.
func (r *runtime) update(ctx context.Context, c *command, a *answer) error {
	found, sandbox, err := r.containerOf(c.ID)
	if err != nil {
		return err
	}
	wanted := api.FromOCILinuxResources(c.Resources, nil)
	began := time.Now()
	given, err := r.nri.UpdateContainer(ctx, &api.UpdateContainerRequest{
		Pod: sandbox.nri(), Container: found.nri(), LinuxResources: wanted,
	})
	a.timed(began)
	if err != nil {
		return err
	}
	// The last update is that of the container itself; without a plug-in that changes it, the request stands.
	last := len(given.Update) - 1
	a.Updates, _ = r.apply(given.Update[:last])
	if given.Update[last] != nil {
		wanted = given.Update[last].GetLinux().GetResources()
	}
	a.Container = found
	return found.generator().AdjustResources(wanted)
}

func (r *runtime) stop(ctx context.Context, c *command, a *answer) error {
	found, sandbox, err := r.containerOf(c.ID)
	if err != nil {
		return err
	}
	found.Running = false
	began := time.Now()
	given, err := r.nri.StopContainer(ctx, &api.StopContainerRequest{Pod: sandbox.nri(), Container: found.nri()})
	a.timed(began)
	if err == nil {
		a.Updates, _ = r.apply(given.Update)
	}
	return err
}

func (r *runtime) remove(ctx context.Context, c *command, a *answer) error {
	found, sandbox, err := r.containerOf(c.ID)
	if err != nil {
		return err
	}
	defer a.timed(time.Now())
	delete(r.containers, c.ID)
	return r.nri.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: sandbox.nri(), Container: found.nri()})
}

// synchronize passes all pods and containers to a plug-in that has connected.
func (r *runtime) synchronize(ctx context.Context, pass adaptation.SyncCB) error {
	r.Lock()
	defer r.Unlock()
	state := &answer{}
	_ = r.dump(ctx, nil, state)
	var pods []*api.PodSandbox
	var containers []*api.Container
	for _, each := range state.Pods {
		pods = append(pods, each.nri())
	}
	for _, each := range state.Containers {
		containers = append(containers, each.nri())
	}
	updates, err := pass(ctx, pods, containers)
	if err != nil {
		return err
	}
	done, failed := r.apply(updates)
	r.out.write(event{Event: "synchronized", Updates: done, Failed: idsOf(failed)})
	return nil
}

// updateContainers does what a plug-in asks for without a request.
func (r *runtime) updateContainers(_ context.Context, asked []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	r.Lock()
	defer r.Unlock()
	done, failed := r.apply(asked)
	r.out.write(event{Event: "update", Updates: done, Failed: idsOf(failed)})
	return failed, nil
}

// apply changes the resources of containers; it returns what was done, and what failed without permission to fail.
func (r *runtime) apply(asked []*api.ContainerUpdate) ([]*update, []*api.ContainerUpdate) {
	var done []*update
	var failed []*api.ContainerUpdate
	for _, each := range asked {
		resources := each.GetLinux().GetResources()
		found, known := r.containers[each.ContainerId]
		if !known || slices.Contains(r.failing, each.ContainerId) ||
			found.generator().AdjustResources(resources) != nil {
			if !each.IgnoreFailure {
				failed = append(failed, each)
			}
			continue
		}
		done = append(done, &update{each.ContainerId, resources.ToOCI()})
	}
	return done, failed
}

func idsOf(updates []*api.ContainerUpdate) []string {
	var ids []string
	for _, each := range updates {
		ids = append(ids, each.ContainerId)
	}
	return ids
}

func (r *runtime) podOf(id string) (*pod, error) {
	found, known := r.pods[id]
	if !known {
		return nil, fmt.Errorf("no pod %q", id)
	}
	return found, nil
}

func (r *runtime) containerOf(id string) (*container, *pod, error) {
	found, known := r.containers[id]
	if !known {
		return nil, nil, fmt.Errorf("no container %q", id)
	}
	sandbox, err := r.podOf(found.Pod)
	return found, sandbox, err
}
