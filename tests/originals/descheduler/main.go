// Runs a round of descheduler's LowNodeUtilization, with its default evictor and a Prometheus metric per node, on
// clusters. Reads a cluster per line as JSON, and writes the pods that the round evicts, in order.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"log"
	"net/http"
	"net/url"
	"os"
	"sort"

	promapi "github.com/prometheus/client_golang/api"
	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	core "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"sigs.k8s.io/descheduler/pkg/api"
	"sigs.k8s.io/descheduler/pkg/descheduler/evictions"
	"sigs.k8s.io/descheduler/pkg/framework/plugins/defaultevictor"
	"sigs.k8s.io/descheduler/pkg/framework/plugins/nodeutilization"
	frameworktesting "sigs.k8s.io/descheduler/pkg/framework/testing"
	frameworktypes "sigs.k8s.io/descheduler/pkg/framework/types"
)

const longestLine = 1 << 24

type cluster struct {
	Nodes      []*v1.Node         `json:"nodes"`
	Pods       []*v1.Pod          `json:"pods"`
	Values     map[string]float64 `json:"values"`
	Low        float64            `json:"low"`
	High       float64            `json:"high"`
	Deviation  bool               `json:"deviation"`
	NodeLimit  *uint              `json:"node_limit"`
	TotalLimit *uint              `json:"total_limit"`
}

type answer struct {
	Evicted []string `json:"evicted"`
	Error   string   `json:"error"`
}

// metricOfNodes answers each query of Prometheus with one value per node.
type metricOfNodes map[string]float64

func (metricOfNodes) URL(string, map[string]string) *url.URL { return &url.URL{} }

func (values metricOfNodes) Do(context.Context, *http.Request) (*http.Response, []byte, error) {
	samples := []any{}
	for name, value := range values {
		text, _ := json.Marshal(value)
		samples = append(samples, map[string]any{
			"metric": map[string]string{"instance": name},
			"value":  []any{1.0, string(text)},
		})
	}
	body, err := json.Marshal(map[string]any{
		"status": "success",
		"data":   map[string]any{"resultType": "vector", "result": samples},
	})
	return &http.Response{StatusCode: http.StatusOK}, body, err
}

var _ promapi.Client = metricOfNodes{}

func main() {
	klog.LogToStderr(false)
	klog.SetLogger(klog.Logger{})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, longestLine)
	output := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var given cluster
		if err := json.Unmarshal(lines.Bytes(), &given); err != nil {
			log.Fatal(err)
		}
		if err := output.Encode(round(&given)); err != nil {
			log.Fatal(err)
		}
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
}

func round(given *cluster) answer {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	objects := []runtime.Object{}
	for _, node := range given.Nodes {
		objects = append(objects, node)
	}
	for _, pod := range given.Pods {
		objects = append(objects, pod)
	}
	found := answer{Evicted: []string{}}
	client := fake.NewSimpleClientset(objects...)
	client.PrependReactor("create", "pods", func(action core.Action) (bool, runtime.Object, error) {
		if eviction, ok := action.(core.CreateAction).GetObject().(*policy.Eviction); ok {
			found.Evicted = append(found.Evicted, eviction.Namespace+"/"+eviction.Name)
		}
		return true, nil, nil
	})
	plugin, err := balancePlugin(ctx, client, given)
	if err != nil {
		log.Fatal(err)
	}
	if status := plugin.Balance(ctx, given.Nodes); status != nil && status.Err != nil {
		found.Error = status.Err.Error()
	}
	return found
}

func balancePlugin(ctx context.Context, client *fake.Clientset, given *cluster) (frameworktypes.BalancePlugin, error) {
	options := evictions.NewOptions().WithMaxPodsToEvictTotal(given.TotalLimit)
	handle, _, err := frameworktesting.InitFrameworkHandle(
		ctx, client, options, defaultevictor.DefaultEvictorArgs{}, byName,
	)
	if err != nil {
		return nil, err
	}
	handle.PrometheusClientImpl = metricOfNodes(given.Values)
	name := nodeutilization.MetricResource
	args := &nodeutilization.LowNodeUtilizationArgs{
		UseDeviationThresholds: given.Deviation,
		Thresholds:             api.ResourceThresholds{name: api.Percentage(given.Low)},
		TargetThresholds:       api.ResourceThresholds{name: api.Percentage(given.High)},
		MetricsUtilization: &nodeutilization.MetricsUtilization{
			Source:     api.PrometheusMetrics,
			Prometheus: &nodeutilization.Prometheus{Query: "metric"},
		},
	}
	if given.NodeLimit != nil {
		args.EvictionLimits = &api.EvictionLimits{Node: given.NodeLimit}
	}
	plugin, err := nodeutilization.NewLowNodeUtilization(ctx, args, handle)
	if err != nil {
		return nil, err
	}
	return plugin.(frameworktypes.BalancePlugin), nil
}

func byName(pods []*v1.Pod) {
	sort.Slice(pods, func(i, j int) bool {
		a, b := pods[i], pods[j]
		return a.Namespace < b.Namespace || a.Namespace == b.Namespace && a.Name < b.Name
	})
}
