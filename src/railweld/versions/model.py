"""The shape of a version set file: what may stand in `versions/NAME.yml`, and nothing else."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

VendorRepository = Literal["ubuntu2204", "ubuntu2404", "debian12"]
#: Driver kernel modules: `open` (GPL/MIT, signed or DKMS) or `proprietary`.
Modules = Literal["open", "proprietary"]
RepositoryId = Literal["cuda", "doca", "os", "kubernetes", "container_toolkit"]

Version = Annotated[str, Field(pattern=r"^[0-9][0-9A-Za-z.+~:-]*$")]
PackageName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]+$")]


class Strict(BaseModel):
    """Unknown keys, wrong types and later changes are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Package(Strict):
    """One package as it is asked for: `name=version`.

    An empty version stands for "what the OS mirror of the site serves": the archives of the
    distributions drop a build when its security update appears, so an exact build there is a
    pin only on a mirror that the site keeps.
    """

    name: PackageName
    version: str = ""

    def __str__(self) -> str:
        """Give the apt argument."""
        return f"{self.name}={self.version}" if self.version else self.name


class PackageSpec(Strict):
    """A package of a component, with the options under which it belongs to the list.

    Attributes:
        name: exact name in the vendor's repository.
        version: exact version; `{version}`, `{cuda}` and `{compat}` are replaced.
        overridden: version to use instead when the site overrides the component's version.
        modules: only with these driver modules.
        gpudirect: only with this GPUDirect mode.
        compat: only with (true) or without (false) cuda-compat.
        confirmed: the exact name and version was seen in a listing or a command that ran;
            false means that it follows from how the vendor names the neighbours.
        source: key of the set's `sources`; empty for the list's own.
    """

    name: PackageName
    version: str = ""
    overridden: str | None = None
    modules: Modules | None = None
    gpudirect: Literal["dmabuf", "peermem"] | None = None
    compat: bool | None = None
    confirmed: bool | None = None
    source: str = ""

    def wanted(self, *, modules: str, gpudirect: str, compat: bool) -> bool:
        """Tell whether the package belongs to a host with these options."""
        return (
            self.modules in (None, modules)
            and self.gpudirect in (None, gpudirect)
            and self.compat in (None, compat)
        )


class PackageList(Strict):
    """The packages of a component in one vendor repository, or why there are none."""

    packages: tuple[PackageSpec, ...] = ()
    absent: str = ""
    confirmed: bool = False
    source: str = ""
    note: str = ""

    @model_validator(mode="after")
    def _either_packages_or_reason(self) -> PackageList:
        if bool(self.packages) == bool(self.absent):
            msg = "give either packages or the reason why there are none (absent)"
            raise ValueError(msg)
        return self


class Component(Strict):
    """One layer of the set.

    Attributes:
        version: as the program itself reports it.
        overridable: pattern of the versions for which the package names below hold.
        source: key of the set's `sources`.
        confirmed: see `PackageSpec.confirmed`.
        why: what a reader must know about this choice.
        packages: per vendor repository; a missing key means the same as `absent`.
    """

    version: Version
    overridable: str = ""
    source: str = ""
    confirmed: bool = False
    why: str = ""
    packages: dict[VendorRepository, PackageList] = Field(default_factory=dict)

    @property
    def substitutions(self) -> dict[str, str]:
        """What the templates of package versions may use."""
        return {"version": self.version}


class Driver(Component):
    """The GPU driver; `modules` is the set's choice of kernel modules."""

    modules: Modules

    @property
    def branch(self) -> str:
        """`515` of `515.86.01`."""
        return self.version.split(".", 1)[0]


class Compat(Strict):
    """cuda-compat: the user-mode driver of the toolkit's own release, for older kernel drivers.

    Attributes:
        enabled: whether the set installs it unless the site says otherwise.
        driver: the driver version whose libraries it carries.
        version: package version.
        branches: driver branches on which the vendor lets it run.
    """

    enabled: bool
    driver: Version
    version: str
    branches: tuple[str, ...]


class Cuda(Component):
    """The CUDA toolkit; `nvcc` is what `nvcc --version` prints behind the V."""

    nvcc: Version
    compat: Compat

    @property
    def release(self) -> str:
        """`12.1` of `12.1.1`: the directory and the suffix of the package names."""
        return ".".join(self.version.split(".")[:2])

    @property
    def substitutions(self) -> dict[str, str]:
        """Adds the compat package's version."""
        return {"version": self.version, "compat": self.compat.version}


class Nccl(Component):
    """NCCL; `cuda` is the toolkit release that the package was built with."""

    cuda: Annotated[str, Field(pattern=r"^\d+\.\d+$")]

    @property
    def substitutions(self) -> dict[str, str]:
        """Adds the CUDA release of the build."""
        return {"version": self.version, "cuda": self.cuda}


class Doca(Component):
    """DOCA-OFED; `ofed` is what `ofed_info -s` prints, without the colon."""

    ofed: str


class Slurm(Component):
    """Slurm; `origin` says where its packages come from (no vendor repository has them)."""

    origin: str
    origin_reason: str


class Image(Strict):
    """A container image or chart that a later stage uses.

    Attributes:
        ref: reference with a tag, without a digest.
        digest: `sha256:…`; null where nobody of us has resolved it: pin it on the mirror.
    """

    ref: str
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    source: str = ""
    confirmed: bool = False


class Repo(Strict):
    """An apt repository. An empty suite is a flat one: `deb URL /`.

    `key_fingerprint` is null where it could not be confirmed: a site that wants the check
    gives its own.
    """

    url: str
    suite: str = ""
    components: tuple[str, ...] = ()
    key_url: str
    key_fingerprint: Annotated[str, Field(pattern=r"^[0-9A-F]{40}$")] | None = None
    source: str = ""


class RepoSpec(Strict):
    """A vendor's repository; URLs are templates, `paths` gives the part per vendor repository."""

    url: str
    suite: str = ""
    components: tuple[str, ...] = ()
    key_url: str
    key_fingerprint: Annotated[str, Field(pattern=r"^[0-9A-F]{40}$")] | None = None
    paths: dict[VendorRepository, str] = Field(default_factory=dict)
    source: str = ""


class Source(Strict):
    """Where a fact of the set was read."""

    at: str
    says: str


class SetFile(Strict):
    """One file of `versions/`: exact versions that belong together."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    summary: str
    explanation: str
    sources: dict[str, Source]
    repositories: dict[RepositoryId, RepoSpec]
    driver: Driver
    fabric_manager: Component
    cuda: Cuda
    nccl: Nccl
    dcgm: Component
    doca: Doca
    rdma: Component
    container_toolkit: Component
    kubernetes: Component
    containerd: Component
    slurm: Slurm
    images: dict[str, Image]
    charts: dict[str, str]

    @model_validator(mode="after")
    def _sources_exist(self) -> SetFile:
        used = {spec.source for spec in self.repositories.values()}
        used |= {image.source for image in self.images.values()}
        for component in self.components().values():
            used.add(component.source)
            for listing in component.packages.values():
                used.add(listing.source)
                used |= {package.source for package in listing.packages}
        unknown = sorted(used - set(self.sources) - {""})
        if unknown:
            msg = f"sources named but not described under `sources`: {', '.join(unknown)}"
            raise ValueError(msg)
        return self

    def components(self) -> dict[str, Component]:
        """All components by name, in the order of the file."""
        return {
            name: value
            for name in type(self).model_fields
            if isinstance(value := getattr(self, name), Component)
        }
