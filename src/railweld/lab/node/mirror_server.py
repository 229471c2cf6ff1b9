"""HTTP server of the lab's apt mirror, on the node that has the repositories mounted.

`/REPOSITORY/FILE` comes from what a fault put in the lab's own folder, else from the build that
`served.json` names. Both are read at each request, so a repository can change under running nodes.
"""

from __future__ import annotations

import http.server
import io
import json
import posixpath
import urllib.parse
from pathlib import Path
from typing import BinaryIO

BUILDS = Path("/srv/railweld-lab/builds")
LAB = Path("/srv/railweld-lab/lab")
PORT = 80


def find(path: str, builds: Path = BUILDS, lab: Path = LAB) -> Path | None:
    """The file behind a request path, or None."""
    parts = [
        part
        for part in posixpath.normpath(urllib.parse.unquote(path.partition("?")[0])).split("/")
        if part not in ("", ".", "..")
    ]
    if len(parts) == 1 and parts[0].endswith(".asc"):
        return lab / parts[0]
    if not parts:
        return None
    repository, rest = parts[0], parts[1:]
    override = lab.joinpath("override", repository, *rest)
    if rest and override.is_file():
        return override
    served = json.loads((lab / "served.json").read_text())
    if repository not in served:
        return None
    return builds.joinpath(served[repository], *rest)


class Handler(http.server.SimpleHTTPRequestHandler):
    """Static files; keeps connections open because apt asks for many files."""

    protocol_version = "HTTP/1.1"
    server_version = "railweld-lab-mirror"

    def translate_path(self, path: str) -> str:
        """Map a request to a file; an unknown one to a path that does not exist."""
        return str(find(path) or LAB / "absent")

    def send_head(self) -> io.BytesIO | BinaryIO | None:
        """Answer "not modified" only for the very file that the client has, not for an older one.

        A repository can go back to an earlier build, which is news to the client.
        """
        since = self.headers.get("If-Modified-Since")
        file = Path(self.translate_path(self.path))
        if since and file.is_file() and self.date_time_string(int(file.stat().st_mtime)) != since:
            del self.headers["If-Modified-Since"]
        return super().send_head()

    def list_directory(self, path: object) -> None:  # noqa: ARG002 - http.server's signature
        """No listings: apt does not need them."""
        self.send_error(404, "Not Found")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's own name
        """Keep the journal free of one line per request."""


def main() -> None:
    """Serve until stopped."""
    http.server.ThreadingHTTPServer(("", PORT), Handler).serve_forever()
