package main

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
)

// judges are the profile and, to say who else refuses a node, each of its filters alone.
type judges struct {
	world *world
	all   framework.Framework
	alone map[string]framework.Framework
	// Names of the filters in kube-scheduler's order.
	filters []string
}

func judge(profile *config.KubeSchedulerProfile, asked question) (answer, error) {
	waiting, err := decodePod(asked.Pod)
	if err != nil {
		return answer{}, err
	}
	var assumed []*v1.Pod
	for _, each := range asked.Assumed {
		pod, err := decodePod(each.Pod)
		if err != nil {
			return answer{}, err
		}
		assumed = append(assumed, pod)
	}
	seen, err := newWorld(asked, waiting, assumed)
	if err != nil {
		return answer{}, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	all, err := newJudges(ctx, profile, seen)
	if err != nil {
		return answer{}, err
	}
	seen.informers.Start(ctx.Done())
	seen.informers.WaitForCacheSync(ctx.Done())
	given := answer{
		Refused: map[string]string{}, Also: map[string][]string{}, Reasons: map[string]string{},
		Scores: map[string]map[string]int64{}, LeftOut: []string{},
	}
	for index, pod := range assumed {
		if !all.assume(ctx, pod, asked.Assumed[index].Node) {
			given.LeftOut = append(given.LeftOut, pod.Name)
		}
	}
	state := framework.NewCycleState()
	fits, err := all.filter(ctx, state, waiting, &given)
	if err != nil {
		return answer{}, err
	}
	if len(fits) > 0 {
		if err := score(ctx, all.all, state, waiting, fits, given.Scores); err != nil {
			given.Errored, given.ScoreError = true, err.Error()
			given.Scores = map[string]map[string]int64{}
		}
	}
	return given, nil
}

func newJudges(ctx context.Context, profile *config.KubeSchedulerProfile, seen *world) (*judges, error) {
	all, err := seen.scheduler(ctx, profile)
	if err != nil {
		return nil, err
	}
	made := &judges{world: seen, all: all, alone: map[string]framework.Framework{}}
	for _, filter := range all.ListPlugins().Filter.Enabled {
		made.filters = append(made.filters, filter.Name)
		single := profile.DeepCopy()
		plugins := &single.Plugins.MultiPoint
		plugins.Enabled = slices.DeleteFunc(plugins.Enabled, func(plugin config.Plugin) bool {
			return plugin.Name != filter.Name && plugin.Name != names.PrioritySort && plugin.Name != names.DefaultBinder
		})
		if made.alone[filter.Name], err = seen.scheduler(ctx, single); err != nil {
			return nil, err
		}
	}
	return made, nil
}

// assume runs a pod's scheduling cycle for one node. Returns false, and changes nothing, where the node refuses the pod.
func (j *judges) assume(ctx context.Context, pod *v1.Pod, node string) bool {
	state := framework.NewCycleState()
	status, known := statuses(ctx, j.all, state, pod, j.world)[node]
	if !known || !status.IsSuccess() {
		return false
	}
	if !j.all.RunReservePluginsReserve(ctx, state, pod, node).IsSuccess() {
		return false
	}
	for _, alone := range j.alone {
		state := framework.NewCycleState()
		statuses(ctx, alone, state, pod, j.world)
		alone.RunReservePluginsReserve(ctx, state, pod, node)
	}
	j.world.assume(pod, node)
	return true
}

// filter writes into `given` who refuses which node, and returns the nodes that fit.
func (j *judges) filter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, given *answer) ([]fwk.NodeInfo, error) {
	together := statuses(ctx, j.all, state, pod, j.world)
	alone := map[string]map[string]*fwk.Status{}
	for _, name := range j.filters {
		alone[name] = statuses(ctx, j.alone[name], framework.NewCycleState(), pod, j.world)
	}
	var fits []fwk.NodeInfo
	for _, node := range j.world.nodes {
		status := together[node.Name]
		var by []string
		for _, name := range j.filters {
			if !alone[name][node.Name].IsSuccess() {
				by = append(by, name)
			}
		}
		if status.IsSuccess() != (len(by) == 0) {
			return nil, fmt.Errorf("node %s: together %v, alone refused by %v", node.Name, status, by)
		}
		if status.IsSuccess() {
			info, err := j.world.Get(node.Name)
			if err != nil {
				return nil, err
			}
			fits = append(fits, info)
			continue
		}
		blamed := status.Plugin()
		if blamed == "" {
			blamed = by[0]
		}
		given.Errored = given.Errored || status.Code() == fwk.Error
		given.Refused[node.Name] = blamed
		given.Reasons[node.Name] = status.Message()
		if others := slices.DeleteFunc(by, func(name string) bool { return name == blamed }); len(others) > 0 {
			given.Also[node.Name] = others
		}
	}
	return fits, nil
}

// statuses does what findNodesThatFitPod of kube-scheduler does, for every node.
func statuses(ctx context.Context, asked framework.Framework, state fwk.CycleState, pod *v1.Pod, seen *world) map[string]*fwk.Status {
	found := map[string]*fwk.Status{}
	infos, _ := seen.NodeInfos().List()
	only, status, by := asked.RunPreFilterPlugins(ctx, state, pod)
	for _, info := range infos {
		if info.Node() == nil {
			continue
		}
		name := info.Node().Name
		switch {
		case !status.IsSuccess():
			found[name] = status
		case !only.AllNodes() && !only.NodeNames.Has(name):
			left := fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "left out by PreFilter")
			if by.Len() == 1 {
				left = left.WithPlugin(by.UnsortedList()[0])
			}
			found[name] = left
		default:
			found[name] = asked.RunFilterPlugins(ctx, state, pod, info)
		}
	}
	return found
}

func score(ctx context.Context, asked framework.Framework, state fwk.CycleState, pod *v1.Pod, fits []fwk.NodeInfo, scores map[string]map[string]int64) error {
	if status := asked.RunPreScorePlugins(ctx, state, pod, fits); !status.IsSuccess() {
		return fmt.Errorf("PreScore: %v", status)
	}
	nodes, status := asked.RunScorePlugins(ctx, state, pod, fits)
	if !status.IsSuccess() {
		return fmt.Errorf("Score: %v", status)
	}
	weights := map[string]int64{}
	for _, plugin := range asked.ListPlugins().Score.Enabled {
		weights[plugin.Name] = int64(plugin.Weight)
	}
	for _, node := range nodes {
		for _, plugin := range node.Scores {
			if state.GetSkipScorePlugins().Has(plugin.Name) {
				continue
			}
			if scores[plugin.Name] == nil {
				scores[plugin.Name] = map[string]int64{}
			}
			scores[plugin.Name][node.Name] = plugin.Score / weights[plugin.Name]
		}
	}
	return nil
}
