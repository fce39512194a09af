// Computes the requests and limits of pods with component-helpers of Kubernetes, as kube-scheduler calls it. Reads a
// pod per line as JSON, and writes the result as JSON: CPU in millicores, other resources in whole units.
package main

import (
	"bufio"
	"encoding/json"
	"log"
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"
)

const longestLine = 1 << 20

type answer struct {
	Requests map[v1.ResourceName]int64 `json:"requests"`
	Counted  map[v1.ResourceName]int64 `json:"counted"`
	Limits   map[v1.ResourceName]int64 `json:"limits"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, longestLine)
	output := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var pod v1.Pod
		if err := json.Unmarshal(lines.Bytes(), &pod); err != nil {
			log.Fatal(err)
		}
		if err := output.Encode(computed(&pod)); err != nil {
			log.Fatal(err)
		}
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
}

func computed(pod *v1.Pod) answer {
	options := helper.PodResourcesOptions{
		UseStatusResources: true,
		InPlacePodLevelResourcesVerticalScalingEnabled: true,
	}
	counting := options
	counting.NonMissingContainerRequests = v1.ResourceList{
		v1.ResourceCPU:    resource.MustParse("100m"),
		v1.ResourceMemory: resource.MustParse("200Mi"),
	}
	counted := whole(helper.PodRequests(pod, counting))
	return answer{
		Requests: whole(helper.PodRequests(pod, options)),
		Counted:  map[v1.ResourceName]int64{"cpu": counted["cpu"], "memory": counted["memory"]},
		Limits:   whole(helper.PodLimits(pod, options)),
	}
}

func whole(list v1.ResourceList) map[v1.ResourceName]int64 {
	amounts := map[v1.ResourceName]int64{}
	for name, quantity := range list {
		if name == v1.ResourceCPU {
			amounts[name] = quantity.MilliValue()
		} else {
			amounts[name] = quantity.Value()
		}
	}
	return amounts
}
