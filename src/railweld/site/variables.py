"""Every variable of the site description: the one place where name, type and meaning are written.

Each class is a scope. A field `host_mtu` is the Ansible variable `railweld_host_mtu`. The JSON
Schema for editors and docs/reference/site.md are generated from here, and so are the errors of
`railweld check`; there is no second list to keep in step.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic.fields import FieldInfo

from railweld.names import SITE_VARIABLE_PREFIX


class Scope(StrEnum):
    """Who may have a value of their own."""

    SITE = "site"
    HOST = "host"
    SWITCH = "switch"


def _not_a_boolean(value: Any) -> Any:
    # Python counts true as 1; `railweld_gpu_count: true` is a mistake all the same.
    if isinstance(value, bool):
        raise ValueError(f"a number, not {str(value).lower()}")  # noqa: TRY004 - pydantic's protocol
    return value


def _not_a_number(value: Any) -> Any:
    # YAML reads 1.30 as the number 1.3, so an unquoted version has already lost its last digit.
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # ValueError, because pydantic reports nothing else.
        raise ValueError(  # noqa: TRY004 - pydantic's protocol
            f'text: put it in quotes ("{value}"), YAML reads it as a number'
        )
    return value


def _without_login(value: str) -> str:
    if urlsplit(value).username is not None:
        raise ValueError(
            "an address without a login, which everybody could read in sources files and reports: "
            "let a proxy inside the site's network add it"
        )
    return value


def _plain_fingerprint(value: str) -> str:
    return value.replace(" ", "").upper()


#: What a pattern means, for error texts: nobody reads regular expressions gladly.
PATTERN_WORDS: Final[dict[str, str]] = {}


def _pattern(pattern: str, words: str) -> Any:
    PATTERN_WORDS[pattern] = words
    return Field(pattern=pattern)


#: Last in each annotation, so that limits and patterns reach the number or text itself.
_NUMBER = BeforeValidator(_not_a_boolean)
_QUOTED = BeforeValidator(_not_a_number)

Text = Annotated[str, Field(min_length=1), _QUOTED]
VersionText = Annotated[
    str,
    _pattern(r"^[0-9][A-Za-z0-9.+:~-]*$", "a version, beginning with a digit"),
    _QUOTED,
]
DnsLabel = Annotated[
    str,
    _pattern(
        r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        "a DNS label: lower-case letters, digits and inner hyphens, at most 63",
    ),
]
#: As Slurm can name a partition.
SlurmName = Annotated[
    str,
    _pattern(
        r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$",
        "letters, digits and inner dots, hyphens and underscores, at most 63",
    ),
]
SlurmTime = Annotated[
    str,
    _pattern(
        r"^(UNLIMITED|\d+|\d+:\d\d(:\d\d)?|\d+-\d\d?(:\d\d){0,2})$",
        'UNLIMITED, minutes, or days-hours:minutes:seconds such as "3-00:00:00"',
    ),
    _QUOTED,
]
SlurmKey = Annotated[
    str, _pattern(r"^[A-Z][A-Za-z0-9]+$", "a parameter as slurm.conf(5) writes it")
]
#: One parameter's value. A line break would begin another parameter.
SlurmValue = Annotated[
    str, _pattern(r"^[^\s#]+( [^\s#]+)*$", "text without line breaks and #"), _QUOTED
]
NetDevice = Annotated[
    str, _pattern(r"^[^\s/:]{1,15}$", "a network device name: at most 15 characters, no / or :")
]
RdmaDevice = Annotated[
    str, _pattern(r"^[A-Za-z][A-Za-z0-9_-]*$", "an RDMA device name such as mlx5_0")
]
Priority = Annotated[int, Field(ge=0, le=7), _NUMBER]
Dscp = Annotated[int, Field(ge=0, le=63), _NUMBER]
Rate = Annotated[int, Field(gt=0, le=1600), _NUMBER]
AbsolutePath = Annotated[str, _pattern(r"^/\S*$", "an absolute path")]
Url = Annotated[
    str,
    _pattern(r"^(https?|file)://\S+$", "an http://, https:// or file:// address"),
    AfterValidator(_without_login),
]
Fingerprint = Annotated[
    str,
    _pattern(r"^([0-9A-Fa-f ]{40,60})?$", "an OpenPGP fingerprint: 40 hexadecimal digits"),
    AfterValidator(_plain_fingerprint),
]
ResourceName = Annotated[
    str,
    _pattern(
        r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$",
        "an extended resource such as rdma/hca",
    ),
]

EnvironmentName = Annotated[
    str, _pattern(r"^[A-Z][A-Z0-9_]*$", "an environment variable in capital letters")
]

#: An IPv4 network, as Kubernetes divides it.
Network = Annotated[
    str,
    _pattern(
        r"^(\d{1,3}\.){3}\d{1,3}/([89]|[12]\d)$",
        "an IPv4 network from /8 to /29, e.g. 10.244.0.0/16",
    ),
]
#: As the kubelet's reservedSystemCPUs and Linux cpusets write it.
CpuSet = Annotated[
    str,
    _pattern(r"^\d+(-\d+)?(,\d+(-\d+)?)*$", 'a list of CPUs such as "0-3,64-67"'),
    _QUOTED,
]
Quantity = Annotated[
    str,
    _pattern(r"^\d+(\.\d+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$", 'a Kubernetes quantity such as "8Gi"'),
    _QUOTED,
]

VendorRepository = Literal["ubuntu2204", "ubuntu2404", "debian12"]
#: Images by their name in the version sets.
StackImage = Literal[
    "nfd", "rdma_device_plugin", "device_plugin", "clock_guard", "dcgm_exporter", "cuda_test"
]
#: Add-ons of the stack that a site may leave out.
StackComponent = Literal[
    "nfd", "rdma_plugin", "gpu_plugin", "clock_guard", "metrics", "policies", "bridge"
]
RepositoryId = Literal["cuda", "doca", "os", "kubernetes", "container_toolkit", "slurm"]


class _Part(BaseModel):
    """Part of a variable: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Mirror(_Part):
    """An apt repository that stands in for the vendor's public one."""

    url: Url = Field(description="base address, as in a sources file, without a login")
    suite: str = Field(
        "", description='suite; empty for a flat repository, written "deb URL /" in a sources file'
    )
    components: tuple[Text, ...] = Field((), description="components; none for a flat repository")
    key_url: Url | None = Field(None, description="where the signing key is fetched from")
    key_file: AbsolutePath | None = Field(
        None, description="signing key as a file on the node, instead of key_url"
    )
    key_fingerprint: Fingerprint | None = Field(
        None, description="fingerprint that the fetched key must have; required with key_url"
    )

    def source(self) -> dict[str, Any]:
        """As roles take a repository, beside its id."""
        return {
            "url": self.url,
            "suite": self.suite,
            "components": list(self.components),
            "key_url": self.key_url,
            "key_file": self.key_file,
            "key_fingerprint": self.key_fingerprint or None,
        }


class Rail(_Part):
    """One HCA of every node of the group, and where its cable goes."""

    rail: Annotated[int, Field(ge=1), _NUMBER] = Field(description="rail number, from 1")
    hca: RdmaDevice = Field(description="RDMA device name, e.g. mlx5_0")
    netdev: NetDevice | None = Field(
        None, description="network device of the same port; required with transport roce"
    )
    subnet: str | None = Field(
        None,
        description="IPv4 network of the rail; a node's address is the network + its index. "
        "Leave out on InfiniBand",
    )
    gateway: str | None = Field(
        None, description="router of the rail; leave out where the rail is one subnet"
    )
    switch: Text | None = Field(None, description="switch at the other end, by inventory name")
    port: Text | None = Field(
        None,
        description="port there; {index} is the node's index, {index+16} and {index*2-1} compute",
    )
    rate_gbps: Rate = Field(100, description="line rate that the port must come up with")


class HcaOverride(_Part):
    """What one node's HCA has different from its rail."""

    address: str | None = Field(None, description="IPv4 address inside the rail's subnet")
    netdev: NetDevice | None = Field(None, description="network device")
    switch: Text | None = Field(None, description="switch at the other end")
    port: Text | None = Field(None, description="port there, as in the rail")
    rate_gbps: Rate | None = Field(None, description="line rate")


class Uplink(_Part):
    """A link between two switches, written on one of them or on both."""

    port: Text = Field(description="port on this switch")
    peer: Text = Field(description="the other switch, by inventory name")
    peer_port: Text = Field(description="port there")
    rate_gbps: Rate = Field(100, description="line rate")
    cable_m: Annotated[float, Field(gt=0, le=10_000), _NUMBER] | None = Field(
        None, description="cable length in metres; default railweld_cable_m"
    )
    channel: Annotated[int, Field(ge=1, le=2000), _NUMBER] | None = Field(
        None, description="port-channel that the link is a member of, on both switches"
    )


class Partition(_Part):
    """A Slurm partition: nodes of one kind."""

    name: SlurmName = Field(description="partition name")
    group: Text | None = Field(None, description="Ansible group whose hosts form the partition")
    hosts: tuple[Text, ...] = Field((), description="or the hosts one by one")
    default: bool = Field(False, description="the partition of jobs that name none")
    bridge: bool = Field(
        True,
        description="jobs run as pods of the Kubernetes cluster; false: as plain Slurm jobs on the "
        "nodes themselves",
    )
    max_time: SlurmTime = Field("UNLIMITED", description="longest time limit of a job")
    parameters: dict[SlurmKey, SlurmValue] = Field(
        {}, description="more parameters of the partition, by their names in slurm.conf"
    )


class JobVolume(_Part):
    """A volume that every job gets: shared storage, or a folder of the node."""

    name: DnsLabel = Field(description="name of the volume")
    mount: AbsolutePath = Field(description="where the job sees it, e.g. /data")
    host_path: AbsolutePath | None = Field(
        None, description="folder of the node, e.g. where the parallel file system is mounted"
    )
    claim: Text | None = Field(
        None, description="or a PersistentVolumeClaim in the namespace of the jobs"
    )
    read_only: bool = Field(False, description="jobs cannot write to it")


class _Scope(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False)


class SiteVariables(_Scope):
    """One value for the whole site: set in group_vars/all, the same for every host."""

    # Identity and versions
    site: DnsLabel = Field(
        description="name of the site: the cluster's name, the folder of its state, a DNS label",
        examples=["lab"],
    )
    version_set: Text = Field(
        description="version set (versions/NAME.yml) that every package and image comes from",
        examples=["a100-2023"],
    )
    version_overrides: dict[Text, VersionText] = Field(
        {}, description="components that differ from the set, e.g. {kubernetes: 1.36.3}"
    )
    # Fabric class
    transport: Literal["roce", "infiniband"] = Field(
        "roce", description="what the HCAs speak; a site has one"
    )
    lossless_priority: Priority = Field(
        3, description="priority (802.1p, PFC) of RDMA traffic on hosts and switches"
    )
    lossless_dscp: Dscp = Field(
        26, description="DSCP that hosts mark RDMA traffic with; NCCL_IB_TC is four times this"
    )
    lossless_queue: Priority | None = Field(
        None, description="transmit queue of the lossless class on the switches; default: priority"
    )
    cnp_dscp: Dscp = Field(48, description="DSCP of congestion notification packets")
    cnp_priority: Priority = Field(6, description="priority of congestion notification; lossy")
    host_mtu: Annotated[int, Field(ge=1280, le=9600), _NUMBER] = Field(
        9000, description="IP MTU of the rail network devices"
    )
    switch_mtu: Annotated[int, Field(ge=1500, le=9214), _NUMBER] = Field(
        9214, description="MTU of switch ports; EOS refuses more than 9214"
    )
    ecn_min_kb: Annotated[int, Field(gt=0), _NUMBER] = Field(
        150, description="ECN marking starts at this queue length (kbytes)"
    )
    ecn_max_kb: Annotated[int, Field(gt=0), _NUMBER] = Field(
        1500, description="ECN marking reaches its full probability here (kbytes)"
    )
    ecn_probability: Annotated[int, Field(ge=1, le=100), _NUMBER] = Field(
        20, description="marking probability at ecn_max_kb, in percent"
    )
    pfc_watchdog_timeout_s: Annotated[float, Field(ge=0.01, le=60), _NUMBER] = Field(
        0.20, description="a queue paused longer than this is stuck"
    )
    pfc_watchdog_recovery_s: Annotated[float, Field(ge=0.01, le=60), _NUMBER] = Field(
        0.20, description="a queue must be free of pause this long to be restored"
    )
    pfc_watchdog_polling_s: Annotated[float, Field(ge=0.005, le=30), _NUMBER] = Field(
        0.10, description="how often the watchdog looks; at most half of the other two"
    )
    pfc_watchdog_action: Literal["drop", "errdisable", "notify-only"] = Field(
        "drop", description="what happens to a stuck queue"
    )
    wrr_lossless_percent: Annotated[int, Field(ge=1, le=99), _NUMBER] = Field(
        80, description="share of the lossless queue in weighted round robin"
    )
    mmu: bool = Field(
        False, description="also write buffer (MMU) profiles; re-carves buffers, use a window"
    )
    switch_enable_secret: SecretStr | None = Field(
        None, description="enable secret of the switches; keep it in a vault"
    )
    switch_storm_control: Annotated[float, Field(gt=0, le=100), _NUMBER] | None = Field(
        None,
        description="limit of broadcast, multicast and unknown unicast on host ports, percent",
    )
    # Time
    time_sources: tuple[Text, ...] = Field(
        (),
        description="upstream time sources of the time servers; none: the first time server "
        "serves its own clock",
    )
    time_max_offset_ms: Annotated[float, Field(gt=0), _NUMBER] = Field(
        100, description="a node whose clock is farther off may not join"
    )
    # Host policy
    rdma_stack: Literal["inbox", "doca"] = Field(
        "inbox", description="RDMA drivers: the distribution's, or DOCA-OFED"
    )
    gpudirect: Literal["dmabuf", "peermem"] = Field(
        "dmabuf", description="how NICs reach GPU memory; peermem builds OFED before the driver"
    )
    reboot: Literal["allow", "skip"] = Field(
        "allow",
        description="skip: never reboot; a step that needs it stops at its guard and says so",
    )
    reboot_timeout_s: Annotated[int, Field(gt=0), _NUMBER] = Field(
        1800, description="how long a node may take to come back"
    )
    apt_lock_timeout_s: Annotated[int, Field(gt=0), _NUMBER] = Field(
        600, description="how long to wait for the package manager's lock"
    )
    serial: (
        Annotated[int, Field(gt=0), _NUMBER]
        | Annotated[
            str, _pattern(r"^([1-9]\d{0,3}|([1-9]\d?|100)%)$", 'a number, or a share such as "20%"')
        ]
    ) = Field("20%", description="nodes at once in an upgrade: a number or a share")
    memlock_kib: Annotated[int, Field(ge=64), _NUMBER] | Literal["unlimited"] = Field(
        "unlimited", description="locked-memory limit for jobs; RDMA needs unlimited on real nodes"
    )
    nofile: Annotated[int, Field(ge=1024), _NUMBER] = Field(
        1_048_576, description="open-file limit for jobs"
    )
    patching: Literal["held", "restored"] = Field(
        "held",
        description="held: unattended upgrades and apt timers off; restored: given back to the OS",
    )
    # Cluster
    rdma_resource: ResourceName = Field(
        "rdma/hca", description="extended resource that pods ask for"
    )
    network_mode: Literal["host", "macvlan", "sriov", "dra"] = Field(
        "host", description="how jobs reach the rails; overlay networks cannot carry NCCL"
    )
    control_plane_endpoint: (
        Annotated[str, _pattern(r"^[A-Za-z0-9.-]+(:\d+)?$", "HOST or HOST:PORT")] | None
    ) = Field(
        None,
        description="address of the API server that every node uses; with several control-plane "
        "nodes their load balancer or virtual address. Default: the first control-plane node",
    )
    pod_cidr: Network = Field("10.244.0.0/16", description="addresses of pods; a /24 per node")
    service_cidr: Network = Field("10.96.0.0/12", description="addresses of Services")
    controller_qps: Annotated[int, Field(ge=20, le=10_000), _NUMBER] = Field(
        200,
        description="requests per second with which Kubernetes' controllers make and delete pods, "
        "and twice as many at once; their own 20 would take a minute for a job of 1,280 nodes",
    )
    cni: Literal["bridge", "manifest", "none"] = Field(
        "bridge",
        description="pod network: bridge and routes (all nodes in one subnet), the manifest of "
        "railweld_cni_manifest, or none: the operator installs one",
    )
    cni_manifest: AbsolutePath | None = Field(
        None, description="manifest of a pod network on the controller, with railweld_cni: manifest"
    )
    image_archives: AbsolutePath | None = Field(
        None,
        description="folder on the controller with image archives that every node loads, for "
        "sites without a registry",
    )
    partitions: tuple[Partition, ...] = Field(
        (Partition(name="gpu", group="gpu_nodes", hosts=(), default=True),),
        description="Slurm partitions",
    )
    # Slurm
    munge_key: SecretStr | None = Field(
        None,
        description="key that all daemons and users of Slurm trust, in base64 (at least 32 bytes, "
        "e.g. `head -c 128 /dev/urandom | base64 -w0`); required by deploy-slurm.yml. Keep it in "
        "a vault; another value is a rotation",
    )
    slurm_accounting: bool = Field(
        True, description="keep jobs, users and shares in slurmdbd and MariaDB on the Slurm head"
    )
    slurm_config: Literal["configless", "files"] = Field(
        "configless",
        description="how nodes with a slurmd of their own get slurm.conf: from slurmctld, or as "
        "files of the role",
    )
    slurm_parameters: dict[SlurmKey, SlurmValue] = Field(
        {},
        description="more parameters of slurm.conf, e.g. {PriorityType: priority/multifactor}; "
        "what follows from the description is refused here",
    )
    slurm_virtual_port: Annotated[int, Field(ge=1024, le=60000), _NUMBER] = Field(
        17001,
        description="port on the Slurm head of the first virtual node's slurmd; the next nodes "
        "have the next ports",
    )
    # Stack
    image_registry: Text | None = Field(
        None,
        description="registry (with a path if wanted) that takes the place of every image's own, "
        "e.g. registry.example.com/mirror; none: the public ones",
    )
    image_overrides: dict[StackImage, Text] = Field(
        {},
        description="single images by their name in the version set, e.g. "
        "{dcgm_exporter: registry.example.com/dcgm:4.5@sha256:...}; taken as they are",
    )
    image_pull_secrets: tuple[DnsLabel, ...] = Field(
        (), description="Secrets with registry logins, made by the site in the stack's namespaces"
    )
    stack_without: tuple[StackComponent, ...] = Field(
        (), description="add-ons that the stack leaves out, e.g. because the site has its own"
    )
    gpu_stack: Literal["device_plugin", "operator"] = Field(
        "device_plugin",
        description="who serves GPUs to pods: the device plugin alone, or NVIDIA's gpu-operator "
        "(with driver and toolkit left to the roles)",
    )
    charts: dict[Literal["gpu_operator"], Text] = Field(
        {}, description="where a chart comes from: a path, an oci:// address or a .tgz address"
    )
    rdma_shares: Annotated[int, Field(ge=1, le=1000), _NUMBER] | None = Field(
        None,
        description="how many pods of a node may have its HCAs at the same time; default: as many "
        "as it has HCAs. The number is a counter, not a share of the hardware",
    )
    prometheus: Literal["none", "operator"] = Field(
        "none",
        description="operator: also make PrometheusRule and PodMonitor objects; their definitions "
        "must be in the cluster",
    )
    # Jobs
    bootstrap_interface: NetDevice | None = Field(
        None,
        description="network device over which NCCL's ranks find each other in host network mode; "
        "default: any that is neither a rail nor virtual",
    )
    nccl_profile: Literal["standard", "large"] = Field(
        "standard", description="large: longer InfiniBand timeout, for fabrics of three levels"
    )
    nccl_environment: dict[EnvironmentName, str] = Field(
        {}, description="variables that the site adds to the NCCL profile or sets otherwise"
    )
    job_image: Text | None = Field(
        None, description="image of jobs that name none; default: the version set's CUDA image"
    )
    job_registries: tuple[Text, ...] = Field(
        (),
        description="registries, with a path if wanted, that job images may come from; empty: any",
    )
    job_volumes: tuple[JobVolume, ...] = Field(
        (), description="volumes of every job besides its node's cache"
    )
    job_shm_gib: Annotated[int, Field(ge=1), _NUMBER] = Field(
        64, description="size of a job's /dev/shm; counts as the pod's memory when used"
    )
    job_gpu_quota: Annotated[int, Field(ge=0), _NUMBER] | None = Field(
        None, description="GPUs that all jobs together may ask for; default: all of the site"
    )


class HostVariables(_Scope):
    """Values that may differ per group or host: set in group_vars or host_vars."""

    vendor_repository: VendorRepository | None = Field(
        None, description="the vendors' name of the node's OS; required for every node"
    )
    mirrors: dict[RepositoryId, Mirror] = Field(
        {}, description="repositories to use instead of the vendors' public ones"
    )
    node_index: Annotated[int, Field(ge=0), _NUMBER] | None = Field(
        None,
        description="number of the node on every rail; default: the digits at the end of its name",
    )
    gpu_count: Annotated[int, Field(ge=1, le=64), _NUMBER] | None = Field(
        None, description="GPUs of the node; required in gpu_nodes"
    )
    gpu_model: Text | None = Field(
        None,
        description='as nvidia-smi prints it, without "NVIDIA "; required in gpu_nodes',
        examples=["A100-SXM4-80GB"],
    )
    gpu_persistence: bool = Field(True, description="persistence mode")
    gpu_ecc: bool = Field(True, description="ECC memory; a change needs a reboot")
    gpu_mig: bool = Field(
        False,
        description="MIG mode; instances are the operator's, Kubernetes and Slurm count whole GPUs",
    )
    driver_modules: Literal["open", "proprietary"] | None = Field(
        None, description="flavour of the kernel modules; default: the version set's"
    )
    cuda_compat: bool | None = Field(
        None, description="install cuda-compat; default: the version set's choice"
    )
    rails: tuple[Rail, ...] = Field((), description="HCAs used for jobs, one per rail")
    hca_overrides: dict[RdmaDevice, HcaOverride] = Field(
        {}, description="per HCA: what this node has different from the rail"
    )
    cache_device: AbsolutePath | None = Field(
        None, description="NVMe device for cache and scratch; never formatted if it holds data"
    )
    cache_path: AbsolutePath = Field("/local/cache", description="data kept between jobs")
    scratch_path: AbsolutePath = Field("/local/scratch", description="data of one job")
    kernel_parameters: tuple[Text, ...] = Field((), description="more kernel parameters")
    iommu: Literal["pt", "off", "keep"] = Field(
        "pt", description="IOMMU at boot; keep leaves the boot line alone"
    )
    acs: Literal["off", "keep"] = Field(
        "keep", description="off disables PCIe access control, which detours peer traffic"
    )
    kernel_modules: tuple[Text, ...] = Field(
        ("ib_uverbs", "ib_umad", "rdma_ucm", "rdma_cm", "mlx5_ib"),
        description="kernel modules of the RDMA stack, loaded at boot",
    )
    gpu_runtime: Literal["cdi", "runtime", "none"] | None = Field(
        None,
        description="how containers get GPUs: CDI devices, or NVIDIA's container runtime; default "
        "by the containerd of the version set (CDI needs 1.7)",
    )
    reserved_cpus: CpuSet | None = Field(
        None, description="CPUs kept for the system; pods with whole CPUs never get these"
    )
    reserved_memory: Quantity = Field("2Gi", description="memory kept for the system and kubelet")
    cpus: Annotated[int, Field(ge=1, le=8192), _NUMBER] | None = Field(
        None,
        description="logical CPUs, as nproc prints them; required for nodes of Slurm partitions "
        "by deploy-slurm.yml",
    )
    sockets: Annotated[int, Field(ge=1, le=64), _NUMBER] = Field(
        1, description="processor sockets, as lscpu prints them"
    )
    threads_per_core: Annotated[int, Field(ge=1, le=8), _NUMBER] = Field(
        1, description="hardware threads of a core, as lscpu prints them"
    )
    memory_mib: Annotated[int, Field(ge=1), _NUMBER] | None = Field(
        None,
        description="memory that jobs may have, MiB; at most what `slurmd -C` reports. Required as "
        "cpus is",
    )
    slurmd: Literal["virtual", "real"] | None = Field(
        None,
        description="where the node's slurmd runs: on the Slurm head (virtual; jobs are pods "
        "anyway), or on the node itself. Default: virtual if all its partitions are the bridge's",
    )
    topology_policy: Literal["none", "best-effort", "restricted", "single-numa-node"] | None = (
        Field(
            None,
            description="how GPUs, CPUs and NICs of a pod are aligned; default: best-effort on GPU "
            "nodes, none elsewhere",
        )
    )
    secure_boot_signer: Text | None = Field(
        None, description="common name of the enrolled key; checked where Secure Boot is on"
    )


class SwitchVariables(_Scope):
    """Values of switches: set for the groups leaves and spines, or per switch."""

    switch_model: Text | None = Field(
        None,
        description="model as `show version` prints it; required",
        examples=["DCS-7050CX3-32S"],
    )
    eos_version: VersionText | None = Field(
        None, description="EOS release that must run; none: any that the model supports"
    )
    uplinks: tuple[Uplink, ...] = Field((), description="links to other switches")
    cable_m: Annotated[float, Field(gt=0, le=10_000), _NUMBER] = Field(
        5, description="length of the cables to hosts, in metres; decides the PFC headroom"
    )


#: Scope by scope, in the order of the reference page.
SCOPES: Final[dict[Scope, type[_Scope]]] = {
    Scope.SITE: SiteVariables,
    Scope.HOST: HostVariables,
    Scope.SWITCH: SwitchVariables,
}

#: Site variables that only concern switches: it is enough if all switches have them.
FABRIC_VARIABLES: Final = frozenset(
    name
    for name in SiteVariables.model_fields
    if name.startswith(("ecn_", "pfc_", "wrr_", "switch_")) or name == "mmu"
)


def fields() -> dict[str, tuple[Scope, FieldInfo]]:
    """Every Ansible variable with its scope and definition."""
    return {
        SITE_VARIABLE_PREFIX + name: (scope, field)
        for scope, model in SCOPES.items()
        for name, field in model.model_fields.items()
    }
