package main

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// kubelet is the registration side of a kubelet, in a folder of the test.
type kubelet struct {
	api.UnimplementedRegistrationServer
	folder     string
	registered chan *api.RegisterRequest
	server     *grpc.Server
}

func (k *kubelet) Register(_ context.Context, request *api.RegisterRequest) (*api.Empty, error) {
	k.registered <- request
	return &api.Empty{}, nil
}

func (k *kubelet) start(t *testing.T) {
	t.Helper()
	_ = os.Remove(filepath.Join(k.folder, "kubelet.sock"))
	listener, err := net.Listen("unix", filepath.Join(k.folder, "kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	k.server = grpc.NewServer()
	api.RegisterRegistrationServer(k.server, k)
	go func() { _ = k.server.Serve(listener) }()
	t.Cleanup(k.server.Stop)
}

func (k *kubelet) wait(t *testing.T) *api.RegisterRequest {
	t.Helper()
	select {
	case request := <-k.registered:
		return request
	case <-time.After(30 * time.Second):
		t.Fatal("found no registration, expected one")
		return nil
	}
}

// watch connects to a registered plugin and returns what its ListAndWatch sends.
func (k *kubelet) watch(t *testing.T, endpoint string) <-chan map[string]string {
	t.Helper()
	connection, err := grpc.NewClient("unix://"+filepath.Join(k.folder, endpoint),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	stream, err := api.NewDevicePluginClient(connection).ListAndWatch(context.Background(), &api.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	states := make(chan map[string]string, 8)
	go func() {
		defer close(states)
		for {
			answer, err := stream.Recv()
			if err != nil {
				return
			}
			states <- health(answer.Devices)
		}
	}()
	return states
}

func next(t *testing.T, states <-chan map[string]string) map[string]string {
	t.Helper()
	select {
	case state := <-states:
		return state
	case <-time.After(30 * time.Second):
		t.Fatal("found no news of devices, expected some")
		return nil
	}
}

func write(t *testing.T, path string, content any) {
	t.Helper()
	text, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func profile(t *testing.T, folder string, gpus ...string) string {
	t.Helper()
	listed := []map[string]string{}
	for _, uuid := range gpus {
		listed = append(listed, map[string]string{"uuid": uuid})
	}
	path := filepath.Join(folder, "profile.json")
	write(t, path, map[string]any{"gpus": listed})
	return path
}

func start(t *testing.T, given settings) {
	t.Helper()
	served, err := newPlugin(given)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go func() { _ = served.run(ctx) }()
}

func TestGpusAreRegisteredAndFollowFaults(t *testing.T) {
	folder := t.TempDir()
	side := &kubelet{folder: folder, registered: make(chan *api.RegisterRequest, 8)}
	side.start(t)
	start(t, settings{kind: "gpu", kubelet: folder, profile: profile(t, folder, "GPU-a", "GPU-b"), faults: []string{folder}})

	request := side.wait(t)
	if request.ResourceName != "nvidia.com/gpu" {
		t.Fatalf("found resource %s, expected nvidia.com/gpu", request.ResourceName)
	}
	states := side.watch(t, request.Endpoint)
	if first := next(t, states); first["GPU-a"] != api.Healthy || first["GPU-b"] != api.Healthy {
		t.Fatalf("found %v, expected two healthy GPUs", first)
	}
	write(t, filepath.Join(folder, "faults.json"), map[string]any{
		"active": map[string]any{"gpu-missing": map[string]string{"count": "1"}}})
	if broken := next(t, states); broken["GPU-b"] != api.Unhealthy || broken["GPU-a"] != api.Healthy {
		t.Fatalf("found %v, expected the last GPU unhealthy", broken)
	}
}

func TestPluginRegistersAgainAfterAKubeletRestart(t *testing.T) {
	folder := t.TempDir()
	side := &kubelet{folder: folder, registered: make(chan *api.RegisterRequest, 8)}
	side.start(t)
	start(t, settings{kind: "gpu", kubelet: folder, profile: profile(t, folder, "GPU-a")})
	side.wait(t)
	side.server.Stop()
	side.start(t)
	side.wait(t)
}

func TestFaultTakesThePluginAwayAndItComesBack(t *testing.T) {
	folder := t.TempDir()
	side := &kubelet{folder: folder, registered: make(chan *api.RegisterRequest, 8)}
	side.start(t)
	start(t, settings{kind: "gpu", kubelet: folder, profile: profile(t, folder, "GPU-a"), faults: []string{folder}})
	states := side.watch(t, side.wait(t).Endpoint)
	next(t, states)
	fault := filepath.Join(folder, "device-plugin.json")
	write(t, fault, map[string]any{"gone": []string{"gpu"}})
	select {
	case _, open := <-states:
		if open {
			t.Fatal("found news of devices, expected the connection to end")
		}
	case <-time.After(30 * time.Second):
		t.Fatal("found the plugin still there, expected it gone")
	}
	write(t, fault, map[string]any{"gone": []string{}})
	side.wait(t)
}

func TestNodeWithoutGpusIsRefused(t *testing.T) {
	folder := t.TempDir()
	if _, err := newPlugin(settings{kind: "gpu", profile: profile(t, folder)}); err == nil {
		t.Fatal("found a plugin, expected a refusal")
	}
}

func TestRdmaCountsWhatTheConfigurationSays(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "config.json")
	entry := map[string]any{"resourceName": "hca", "rdmaHcaMax": 3, "selectors": map[string]any{"ifNames": []string{"lo"}}}
	write(t, path, map[string]any{"configList": []any{entry}})
	served, err := newPlugin(settings{kind: "rdma", rdmaConfig: path})
	if err != nil {
		t.Fatal(err)
	}
	if served.resource != "rdma/hca" || len(served.devices) != 3 {
		t.Fatalf("found %s with %d, expected rdma/hca with 3", served.resource, len(served.devices))
	}
	entry["selectors"] = map[string]any{"ifNames": []string{"absent0"}}
	write(t, path, map[string]any{"configList": []any{entry}})
	if devices, err := served.look(); err != nil || len(devices) != 0 {
		t.Fatalf("found %d (%v), expected none without a matching device", len(devices), err)
	}
}

func TestPodGetsAFileForEachAdapterThatIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	selectors := map[string]any{"ifNames": []string{"lo", "absent0"}}
	entry := map[string]any{"resourceName": "hca", "rdmaHcaMax": 8, "selectors": selectors}
	write(t, path, map[string]any{"configList": []any{entry}})
	served, err := newPlugin(settings{kind: "rdma", rdmaConfig: path})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := served.Allocate(context.Background(), &api.AllocateRequest{
		ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{"hca-0"}}}})
	if err != nil {
		t.Fatal(err)
	}
	found := []string{}
	for _, file := range answer.ContainerResponses[0].Devices {
		found = append(found, file.ContainerPath)
	}
	expected := []string{"/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"}
	if !slices.Equal(found, expected) {
		t.Fatalf("found %v, expected %v", found, expected)
	}
}

func TestRdmaNameWithPrefixIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	write(t, path, map[string]any{"configList": []any{map[string]any{"resourceName": "rdma/hca"}}})
	if _, err := newPlugin(settings{kind: "rdma", rdmaConfig: path}); err == nil {
		t.Fatal("found a plugin, expected a refusal")
	}
}
