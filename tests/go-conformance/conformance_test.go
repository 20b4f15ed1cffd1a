// Package conformance drives a DRA plugin with the kubelet's own code: its plugin manager finds and registers the
// plugin, its DRA manager prepares pods' claims and gives them back. Only the API server is a fake.
package conformance

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
	"k8s.io/utils/ptr"
)

const (
	driver  = "gpu.nvidia.com"
	pool    = "node-a"
	patient = 2 * time.Minute
)

// directories of one node, with names short enough for sockets.
type directories struct{ root, registry, plugins string }

func newDirectories(t *testing.T) directories {
	t.Helper()
	root, err := os.MkdirTemp("", "dra-conf-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	return directories{root, filepath.Join(root, "registry"), filepath.Join(root, "plugins")}
}

// plugin is a running plugin; registered is closed once the kubelet has registered it.
type plugin struct {
	*exec.Cmd
	registered chan struct{}
}

// startPlugin runs the plugin that answers and does nothing; podUID gives it sockets of its own.
func startPlugin(t *testing.T, dirs directories, podUID string) plugin {
	t.Helper()
	repository, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	arguments := []string{"-m", "tests.bench.null_plugin", "--driver", driver, "--pool", pool,
		"--registry", dirs.registry, "--plugins", dirs.plugins}
	if podUID != "" {
		arguments = append(arguments, "--pod-uid", podUID)
	}
	command := exec.Command(filepath.Join(repository, ".venv/bin/python"), arguments...)
	command.Dir = repository
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatalf("start the plugin (make its environment with `make test`): %v", err)
	}
	t.Cleanup(func() {
		if command.ProcessState == nil {
			_ = command.Process.Kill()
			_ = command.Wait()
		}
	})
	registered := make(chan struct{})
	go func() {
		for lines := bufio.NewScanner(output); lines.Scan(); {
			if lines.Text() == "registered" {
				close(registered)
			}
		}
	}()
	return plugin{command, registered}
}

// waitRegistered waits until the kubelet has registered a plugin beside others, which no call to the kubelet tells.
func waitRegistered(t *testing.T, started plugin) {
	t.Helper()
	select {
	case <-started.registered:
	case <-time.After(patient):
		t.Fatalf("the plugin was not registered within %v", patient)
	}
}

// kubelet is the part of one that deals with DRA.
type kubelet struct {
	manager *dra.Manager
	stop    func()
}

func startKubelet(t *testing.T, dirs directories, client *fake.Clientset) *kubelet {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	state := filepath.Join(dirs.root, "state")
	if err := os.MkdirAll(state, 0o750); err != nil {
		t.Fatal(err)
	}
	manager, err := dra.NewManager(klog.Background(), client, state)
	if err != nil {
		t.Fatal(err)
	}
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: pool}}
	err = manager.Start(ctx, func() []*v1.Pod { return nil }, func(context.Context) (*v1.Node, error) { return node, nil }, ready)
	if err != nil {
		t.Fatal(err)
	}
	plugins := pluginmanager.NewPluginManager(dirs.registry, record.NewFakeRecorder(100))
	plugins.AddHandler(registerapi.DRAPlugin, manager.GetWatcherHandler())
	go plugins.Run(ctx, ready, ctx.Done())
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			cancel()
			manager.Stop()
		}
	}
	t.Cleanup(stop)
	return &kubelet{manager, stop}
}

// newPod makes a pod with one container and the allocated, reserved claim it uses.
func newPod(t *testing.T, client *fake.Clientset, name string) *v1.Pod {
	t.Helper()
	uid := types.UID("uid-of-" + name)
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: "claim-" + uid},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.nvidia.com"}}}}},
		Status: resourceapi.ResourceClaimStatus{
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: driver, Pool: pool, Device: "gpu-0"}}}},
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: uid}},
		},
	}
	if _, err := client.ResourceV1().ResourceClaims("default").Create(context.Background(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: uid},
		Spec: v1.PodSpec{
			ResourceClaims: []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim.Name}},
			Containers: []v1.Container{{Name: "main", Resources: v1.ResourceRequirements{
				Claims: []v1.ResourceClaim{{Name: "gpu"}}}}},
		},
	}
}

// prepareSoon prepares pod as soon as the plugin is registered; what else goes wrong is an error at once.
func prepareSoon(t *testing.T, kubelet *kubelet, pod *v1.Pod) {
	t.Helper()
	deadline := time.Now().Add(patient)
	for {
		err := kubelet.manager.PrepareResources(context.Background(), pod)
		if err == nil {
			return
		}
		if !strings.Contains(err.Error(), "not registered") || time.Now().After(deadline) {
			t.Fatalf("prepare %s: %v", pod.Name, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func cdiDevices(t *testing.T, kubelet *kubelet, pod *v1.Pod) string {
	t.Helper()
	info, err := kubelet.manager.GetResources(pod, &pod.Spec.Containers[0])
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, device := range info.CDIDevices {
		names = append(names, device.Name)
	}
	return strings.Join(names, ",")
}

// notRegisteredSoon waits until the kubelet has let the plugin go.
func notRegisteredSoon(t *testing.T, kubelet *kubelet, pod *v1.Pod) {
	t.Helper()
	deadline := time.Now().Add(patient)
	for {
		err := kubelet.manager.PrepareResources(context.Background(), pod)
		if err != nil && strings.Contains(err.Error(), "not registered") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the kubelet still knows the plugin; last answer: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func terminate(t *testing.T, plugin plugin) {
	t.Helper()
	started := time.Now()
	if err := plugin.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := plugin.Wait(); err != nil {
		t.Fatalf("the plugin did not end well: %v", err)
	}
	// Less than the 20 s that running calls are given.
	if took := time.Since(started); took > 15*time.Second {
		t.Fatalf("an idle plugin took %v to stop", took)
	}
}

func TestTheKubeletRegistersThePluginPreparesAndUnprepares(t *testing.T) {
	dirs, client := newDirectories(t), fake.NewClientset()
	kubelet := startKubelet(t, dirs, client)
	startPlugin(t, dirs, "")
	pod := newPod(t, client, "one")

	prepareSoon(t, kubelet, pod)

	if got, want := cdiDevices(t, kubelet, pod), "k8s.gpu.nvidia.com/claim=claim-uid-of-one-gpu-0"; got != want {
		t.Errorf("the container gets %q, want %q", got, want)
	}
	if err := kubelet.manager.UnprepareResources(context.Background(), pod); err != nil {
		t.Errorf("unprepare: %v", err)
	}
}

func TestAKubeletThatRestartsFindsTheRunningPluginAgain(t *testing.T) {
	dirs, client := newDirectories(t), fake.NewClientset()
	first := startKubelet(t, dirs, client)
	startPlugin(t, dirs, "")
	prepareSoon(t, first, newPod(t, client, "before"))
	first.stop()

	second := startKubelet(t, dirs, client)

	prepareSoon(t, second, newPod(t, client, "after"))
}

func TestAPluginThatStopsIsDeregistered(t *testing.T) {
	dirs, client := newDirectories(t), fake.NewClientset()
	kubelet := startKubelet(t, dirs, client)
	plugin := startPlugin(t, dirs, "")
	prepareSoon(t, kubelet, newPod(t, client, "before"))

	terminate(t, plugin)

	notRegisteredSoon(t, kubelet, newPod(t, client, "after"))
}

func TestAPluginThatWasKilledRegistersAgainWhenItIsBack(t *testing.T) {
	dirs, client := newDirectories(t), fake.NewClientset()
	kubelet := startKubelet(t, dirs, client)
	plugin := startPlugin(t, dirs, "")
	prepareSoon(t, kubelet, newPod(t, client, "before"))
	_ = plugin.Process.Kill()
	_ = plugin.Wait()
	startPlugin(t, dirs, "")
	pod := newPod(t, client, "after")

	deadline := time.Now().Add(patient)
	var err error
	for time.Now().Before(deadline) {
		if err = kubelet.manager.PrepareResources(context.Background(), pod); err == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("no prepare succeeded after the plugin was back: %v", err)
}

func TestDuringARollingUpdateNoPrepareFails(t *testing.T) {
	dirs, client := newDirectories(t), fake.NewClientset()
	kubelet := startKubelet(t, dirs, client)
	old := startPlugin(t, dirs, "11111111-1111-1111-1111-111111111111")
	prepareSoon(t, kubelet, newPod(t, client, "before"))

	waitRegistered(t, startPlugin(t, dirs, "22222222-2222-2222-2222-222222222222")) // as a DaemonSet waits for readiness
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		terminate(t, old)
	}()

	for number := 0; ; number++ {
		pod := newPod(t, client, "during-"+string(rune('a'+number%26))+string(rune('a'+number/26%26))+string(rune('a'+number/676)))
		if err := kubelet.manager.PrepareResources(context.Background(), pod); err != nil {
			t.Fatalf("prepare %d: %v", number, err)
		}
		select {
		case <-stopped:
			return
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// healthSoon waits until the kubelet would write this about the device of a pod's container into the pod's status.
func healthSoon(t *testing.T, kubelet *kubelet, pod *v1.Pod, want v1.ResourceHealthStatus, message string) {
	t.Helper()
	deadline := time.Now().Add(patient)
	for {
		status := &v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "main"}}}
		kubelet.manager.UpdateAllocatedResourcesStatus(klog.Background(), pod, status)
		told := status.ContainerStatuses[0].AllocatedResourcesStatus
		if len(told) == 1 && len(told[0].Resources) == 1 && told[0].Resources[0].Health == want {
			if got := ptr.Deref(told[0].Resources[0].Message, ""); got != message {
				t.Fatalf("the message is %q, want %q", got, message)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the pod's status says %+v, want %s", told, want)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func signalPlugin(t *testing.T, plugin plugin, number syscall.Signal) {
	t.Helper()
	if err := plugin.Process.Signal(number); err != nil {
		t.Fatal(err)
	}
}

func TestAPodsStatusFollowsTheHealthOfItsDevice(t *testing.T) {
	dirs, client := newDirectories(t), fake.NewClientset()
	kubelet := startKubelet(t, dirs, client)
	plugin := startPlugin(t, dirs, "")
	pod := newPod(t, client, "one")
	prepareSoon(t, kubelet, pod)
	healthSoon(t, kubelet, pod, v1.ResourceHealthStatusHealthy, "")

	signalPlugin(t, plugin, syscall.SIGUSR1)
	healthSoon(t, kubelet, pod, v1.ResourceHealthStatusUnhealthy, "XID 79")

	signalPlugin(t, plugin, syscall.SIGUSR2)
	healthSoon(t, kubelet, pod, v1.ResourceHealthStatusHealthy, "")
}

func TestHealthIsUnknownWithoutThePluginAndComesBackWithIt(t *testing.T) {
	dirs, client := newDirectories(t), fake.NewClientset()
	kubelet := startKubelet(t, dirs, client)
	plugin := startPlugin(t, dirs, "")
	pod := newPod(t, client, "one")
	prepareSoon(t, kubelet, pod)
	healthSoon(t, kubelet, pod, v1.ResourceHealthStatusHealthy, "")

	_ = plugin.Process.Kill()
	_ = plugin.Wait()
	healthSoon(t, kubelet, pod, v1.ResourceHealthStatusUnknown, "")

	startPlugin(t, dirs, "")
	healthSoon(t, kubelet, pod, v1.ResourceHealthStatusHealthy, "")
}
