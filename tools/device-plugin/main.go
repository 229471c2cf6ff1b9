// Stand-in of two device plugins for the lab: NVIDIA's for GPUs, and the RDMA shared one.
//
// It registers with the node's real kubelet over the device plugin API, so that pods are really
// scheduled and admitted. What it offers comes from the lab node's hardware profile and, for RDMA,
// from the same config.json that the real plugin reads. Device files of HCAs bear the real
// names and are /dev/null: there is no hardware behind them.
//
// Faults are read once a second from files that `railweld lab fault` writes, so that they reach the
// plugin whether it runs in a pod or on the node:
//
//	profile's folder/faults.json              gpu-missing: that many GPUs fell off the bus
//	FOLDER/device-plugin.json (see -faults)   {"gone": ["gpu", "rdma"], "unhealthy": {"gpu": 2}}
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	pollInterval    = time.Second
	registerTimeout = 10 * time.Second
)

// settings of the command line.
type settings struct {
	kind, name, kubelet, profile, rdmaConfig string
	faults                                   []string
}

// plugin serves one resource to the kubelet.
type plugin struct {
	api.UnimplementedDevicePluginServer
	settings
	resource string

	mutex   sync.Mutex
	devices []*api.Device
	changed chan struct{} // closed and replaced whenever devices change
}

func main() {
	log.SetFlags(0)
	var given settings
	var faults string
	flag.StringVar(&given.kind, "resource", "gpu", "what to offer: gpu or rdma")
	flag.StringVar(&given.name, "name", "", "name of the resource; rdma: from the config file")
	flag.StringVar(&given.kubelet, "kubelet", "/var/lib/kubelet/device-plugins", "the kubelet's folder")
	flag.StringVar(&given.profile, "profile", "/var/lib/railweld-lab/profile.json", "hardware of the node")
	flag.StringVar(&given.rdmaConfig, "config-file", "/k8s-rdma-shared-dev-plugin/config.json",
		"configuration of the RDMA shared device plugin")
	flag.StringVar(&faults, "faults", "/var/lib/railweld-lab,/dev/railweld-lab", "folders of fault files")
	flag.Parse()
	given.faults = strings.Split(faults, ",")

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	served, err := newPlugin(given)
	if err == nil {
		err = served.run(ctx)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		log.Fatalf("device-plugin: %v", err)
	}
}

func newPlugin(given settings) (*plugin, error) {
	found := &plugin{settings: given, changed: make(chan struct{})}
	switch given.kind {
	case "gpu":
		found.resource = "nvidia.com/gpu"
	case "rdma":
		config, err := readRdmaConfig(given.rdmaConfig)
		if err != nil {
			return nil, err
		}
		found.resource = config.Prefix + "/" + config.Name
	default:
		return nil, fmt.Errorf("-resource: found %q, expected gpu or rdma", given.kind)
	}
	if given.name != "" {
		found.resource = given.name
	}
	var err error
	found.devices, err = found.look()
	if err != nil {
		return nil, err
	}
	if given.kind == "gpu" && len(found.devices) == 0 {
		// As the real plugin with FAIL_ON_INIT_ERROR: a node without GPUs shows a failing pod.
		return nil, fmt.Errorf("found no GPU in %s, expected at least one", given.profile)
	}
	return found, nil
}

// run serves and registers until the context ends, again after each restart of the kubelet and
// after each fault that takes the plugin away.
func (p *plugin) run(ctx context.Context) error {
	go p.watchDevices(ctx)
	for {
		if err := p.waitUntil(ctx, func() bool { return !p.isGone() && p.kubeletID() != "" }); err != nil {
			return err
		}
		if err := p.serveOnce(ctx); err != nil {
			return err
		}
	}
}

// serveOnce serves until the kubelet's socket is another one, or a fault takes the plugin away.
func (p *plugin) serveOnce(ctx context.Context) error {
	kubelet := p.kubeletID()
	socket := filepath.Join(p.kubelet, "railweld-lab-"+p.kind+".sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop() // removes the socket, which is how the kubelet learns that it is gone
	if err := p.register(ctx, filepath.Base(socket)); err != nil {
		log.Printf("%s: cannot register with the kubelet, trying again: %v", p.resource, err)
		return p.pause(ctx)
	}
	log.Printf("%s: registered with %d devices", p.resource, len(p.devices))
	return p.waitUntil(ctx, func() bool {
		_, err := os.Stat(socket)
		return err != nil || p.isGone() || p.kubeletID() != kubelet
	})
}

func (p *plugin) register(ctx context.Context, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	connection, err := grpc.NewClient("unix://"+filepath.Join(p.kubelet, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version:      api.Version,
		Endpoint:     endpoint,
		ResourceName: p.resource,
	})
	return err
}

// kubeletID changes when the kubelet makes its socket anew; it is empty while there is none.
func (p *plugin) kubeletID() string {
	info, err := os.Stat(filepath.Join(p.kubelet, "kubelet.sock"))
	if err != nil {
		return ""
	}
	status, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprint(status.Ino, status.Ctim)
}

func (p *plugin) pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(pollInterval):
		return nil
	}
}

func (p *plugin) waitUntil(ctx context.Context, reached func() bool) error {
	for !reached() {
		if err := p.pause(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// watchDevices tells every open ListAndWatch when a device appeared, vanished or changed health.
func (p *plugin) watchDevices(ctx context.Context) {
	for p.pause(ctx) == nil {
		devices, err := p.look()
		if err != nil {
			log.Printf("%s: %v", p.resource, err)
			continue
		}
		p.mutex.Lock()
		if !reflect.DeepEqual(health(devices), health(p.devices)) {
			p.devices = devices
			close(p.changed)
			p.changed = make(chan struct{})
		}
		p.mutex.Unlock()
	}
}

func health(devices []*api.Device) map[string]string {
	found := map[string]string{}
	for _, device := range devices {
		found[device.ID] = device.Health
	}
	return found
}

// look reads profile, configuration and faults.
func (p *plugin) look() ([]*api.Device, error) {
	var names []string
	unhealthy := p.fault().Unhealthy[p.kind]
	if p.kind == "gpu" {
		profile := struct {
			GPUs []struct {
				UUID string `json:"uuid"`
			} `json:"gpus"`
		}{}
		if err := readJSON(p.profile, &profile); err != nil {
			return nil, err
		}
		for _, gpu := range profile.GPUs {
			names = append(names, gpu.UUID)
		}
		unhealthy = max(unhealthy, missingGPUs(filepath.Join(filepath.Dir(p.profile), "faults.json")))
	} else {
		config, err := readRdmaConfig(p.rdmaConfig)
		if err != nil {
			return nil, err
		}
		// A counter, always healthy: it says nothing about ports, as the real plugin's does not.
		if config.matchesHost() {
			for number := range config.Max {
				names = append(names, fmt.Sprintf("%s-%d", config.Name, number))
			}
		}
	}
	devices := make([]*api.Device, len(names))
	for index, name := range names {
		state := api.Healthy
		if index >= len(names)-unhealthy {
			state = api.Unhealthy
		}
		devices[index] = &api.Device{ID: name, Health: state}
	}
	return devices, nil
}

// rdmaConfig is one entry of the shared plugin's configuration, as far as it decides here.
type rdmaConfig struct {
	Prefix    string `json:"resourcePrefix"`
	Name      string `json:"resourceName"`
	Max       int    `json:"rdmaHcaMax"`
	Selectors struct {
		Interfaces []string `json:"ifNames"`
	} `json:"selectors"`
}

func readRdmaConfig(path string) (rdmaConfig, error) {
	content := struct {
		List []rdmaConfig `json:"configList"`
	}{}
	if err := readJSON(path, &content); err != nil {
		return rdmaConfig{}, err
	}
	if len(content.List) != 1 {
		return rdmaConfig{}, fmt.Errorf("%s: found %d entries in configList, expected 1", path, len(content.List))
	}
	config := content.List[0]
	if config.Prefix == "" {
		config.Prefix = "rdma"
	}
	if config.Name == "" || strings.Contains(config.Name, "/") {
		return rdmaConfig{}, fmt.Errorf("%s: found resourceName %q, expected a name without prefix", path, config.Name)
	}
	if config.Max < 0 {
		return rdmaConfig{}, fmt.Errorf("%s: found rdmaHcaMax %d, expected 0 or more", path, config.Max)
	}
	return config, nil
}

// matchesHost is true if one of the described network devices exists, or none is described.
func (c rdmaConfig) matchesHost() bool {
	return len(c.Selectors.Interfaces) == 0 || c.adapters() > 0
}

// adapters counts the described network devices that exist: each is one HCA's.
func (c rdmaConfig) adapters() int {
	found := 0
	for _, name := range c.Selectors.Interfaces {
		if _, err := net.InterfaceByName(name); err == nil {
			found++
		}
	}
	return found
}

// deviceFiles are what the real plugin gives a pod: one connection manager, and one file per HCA.
func (c rdmaConfig) deviceFiles() []*api.DeviceSpec {
	names := []string{"rdma_cm"}
	for number := range c.adapters() {
		names = append(names, fmt.Sprintf("uverbs%d", number))
	}
	files := make([]*api.DeviceSpec, len(names))
	for index, name := range names {
		files[index] = &api.DeviceSpec{
			HostPath:      os.DevNull,
			ContainerPath: "/dev/infiniband/" + name,
			Permissions:   "rw",
		}
	}
	return files
}

type pluginFault struct {
	Gone      []string       `json:"gone"`
	Unhealthy map[string]int `json:"unhealthy"`
}

func (p *plugin) fault() pluginFault {
	for _, folder := range p.faults {
		var found pluginFault
		if readJSON(filepath.Join(folder, "device-plugin.json"), &found) == nil {
			return found
		}
	}
	return pluginFault{}
}

func (p *plugin) isGone() bool { return slices.Contains(p.fault().Gone, p.kind) }

// missingGPUs reads the lab's fault of GPUs that fell off the bus.
func missingGPUs(path string) int {
	content := struct {
		Active map[string]map[string]string `json:"active"`
	}{}
	if readJSON(path, &content) != nil {
		return 0
	}
	settings, active := content.Active["gpu-missing"]
	if !active {
		return 0
	}
	if count, err := strconv.Atoi(settings["count"]); err == nil {
		return count
	}
	return 1
}

func readJSON(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// GetDevicePluginOptions says that the kubelet may choose devices by itself.
func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// ListAndWatch sends the devices, and again whenever they change.
func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	for {
		p.mutex.Lock()
		devices, changed := p.devices, p.changed
		p.mutex.Unlock()
		if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// Allocate tells the container which devices it has, as the real plugins do: GPUs by environment,
// HCAs by device files.
func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		given := &api.ContainerAllocateResponse{}
		if p.kind == "gpu" {
			given.Envs = map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")}
		} else {
			config, err := readRdmaConfig(p.rdmaConfig)
			if err != nil {
				return nil, err
			}
			given.Devices = config.deviceFiles()
		}
		answer.ContainerResponses = append(answer.ContainerResponses, given)
	}
	return answer, nil
}

// GetPreferredAllocation is never called: the options do not offer it.
func (p *plugin) GetPreferredAllocation(context.Context, *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	return &api.PreferredAllocationResponse{}, nil
}

// PreStartContainer is never called: the options do not ask for it.
func (p *plugin) PreStartContainer(context.Context, *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	return &api.PreStartContainerResponse{}, nil
}
