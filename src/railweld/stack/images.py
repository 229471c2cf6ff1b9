"""Which image each add-on runs: the version set's, through the site's registry and overrides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from railweld.errors import RailweldError

if TYPE_CHECKING:
    from railweld.site import Site


@dataclass(frozen=True)
class Reference:
    """An image reference in its parts."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Split a reference; raises ValueError for one that names no version."""
        rest, _, digest = text.partition("@")
        if digest and not digest.startswith("sha256:"):
            raise ValueError(f"image {text}: found digest {digest!r}, expected sha256:...")
        head, slash, tail = rest.partition("/")
        # As container runtimes decide it: a first part with a dot or a port is a registry.
        is_registry = slash and ("." in head or ":" in head or head == "localhost")
        registry, path = (head, tail) if is_registry else ("", rest)
        path, _, tag = path.partition(":")
        if tag == "latest" or not (tag or digest):
            raise ValueError(
                f"image {text}: found {'the tag latest' if tag else 'no tag'}, expected a tag or "
                "a digest that names one build"
            )
        return cls(registry or "docker.io", path, tag, digest)

    def __str__(self) -> str:
        """Tag and digest both, if both are known."""
        text = f"{self.registry}/{self.repository}"
        if self.tag:
            text += f":{self.tag}"
        return f"{text}@{self.digest}" if self.digest else text

    def through(self, registry: str) -> Reference:
        """The same image in another registry, below a path if that has one."""
        host, _, path = registry.strip("/").partition("/")
        repository = f"{path}/{self.repository}" if path else self.repository
        return Reference(host, repository, self.tag, self.digest)


def images_for(site: Site) -> dict[str, str]:
    """Every image of the version set as this site pulls it, by the set's names.

    Where nodes load images from files (`railweld_image_archives`), they go by their tags: a runtime
    knows a digest only of what it pulled. The archives' index has their checksums.
    """
    overrides: Mapping[str, str] = {str(k): v for k, v in site.image_overrides.items()}
    result = {}
    for name, image in site.versions.versions.images.items():
        try:
            if name in overrides:
                result[name] = str(Reference.parse(overrides[name]))
                continue
            reference = Reference.parse(image.ref)
        except ValueError as error:
            raise RailweldError(f"railweld_image_overrides.{name}: {error}") from error
        if image.digest and not site.image_archives:
            reference = Reference(
                reference.registry, reference.repository, reference.tag, image.digest
            )
        if site.image_registry:
            reference = reference.through(site.image_registry)
        result[name] = str(reference)
    return result
