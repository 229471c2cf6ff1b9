"""Policy pack: `pulumi preview --policy-pack policy` judges the stack by `railweld.stack.rules`.

The engine starts this program and asks it over gRPC, with the SDK's own protocol.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf import empty_pb2, json_format
from pulumi.runtime.proto import analyzer_pb2, analyzer_pb2_grpc, plugin_pb2
from railweld.errors import RailweldError
from railweld.site import load_site
from railweld.stack.graph import job_host_paths
from railweld.stack.plugin import serve
from railweld.stack.rules import DESCRIPTIONS, Context, Violation, judge, judge_together

NAME: Final = "railweld"
VERSION: Final = "0.1.0"


class Analyzer(analyzer_pb2_grpc.AnalyzerServicer):
    """Answers what the engine asks about every resource, and about all of them."""

    def __init__(self) -> None:
        self._context: Context | None = None

    def Handshake(self, _request: Any, _context: Any) -> Any:
        """Agree to talk."""
        return analyzer_pb2.AnalyzerHandshakeResponse()

    def GetPluginInfo(self, _request: Any, _context: Any) -> Any:
        """Say which version this is."""
        return plugin_pb2.PluginInfo(version=VERSION)

    def GetAnalyzerInfo(self, _request: Any, _context: Any) -> Any:
        """List the rules."""
        policies = [
            analyzer_pb2.PolicyInfo(
                name=name,
                displayName=name,
                description=words,
                enforcementLevel=analyzer_pb2.MANDATORY,
            )
            for name, words in DESCRIPTIONS.items()
        ]
        return analyzer_pb2.AnalyzerInfo(
            name=NAME, displayName=NAME, version=VERSION, policies=policies
        )

    def Configure(self, _request: Any, _context: Any) -> Any:
        """Take the pack's own configuration: there is none."""
        return empty_pb2.Empty()

    def ConfigureStack(self, request: Any, context: Any) -> Any:
        """Learn from the stack's configuration which site it is about."""
        inventory = request.config.get("railweld:site")
        if not inventory:
            words = "railweld:site: found nothing, expected the site's inventory"
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, words)
        try:
            # The path is relative to the program's folder, which is above this one.
            folder = Path(__file__).resolve().parents[1]
            site = load_site([str(folder / Path(inventory).expanduser())])
        except RailweldError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        self._context = Context(
            nccl=site.versions.component("nccl").version,
            transport=site.transport,
            rdma_resource=site.rdma_resource if any(h.hcas for h in site.hosts.values()) else "",
            host_paths=job_host_paths(site),
        )
        return analyzer_pb2.AnalyzerStackConfigureResponse()

    def Analyze(self, request: Any, _context: Any) -> Any:
        """Judge one resource before it is made."""
        if self._context is None or not request.type.startswith("kubernetes:"):
            return analyzer_pb2.AnalyzeResponse()
        found = judge(_plain(request.properties), self._context)
        return _response((each, request.urn) for each in found)

    def AnalyzeStack(self, request: Any, _context: Any) -> Any:
        """Judge what only shows in all resources together."""
        if self._context is None:
            return analyzer_pb2.AnalyzeResponse()
        manifests = [
            _plain(each.properties)
            for each in request.resources
            if each.type.startswith("kubernetes:")
        ]
        return _response((each, "") for each in judge_together(manifests))

    def Remediate(self, _request: Any, _context: Any) -> Any:
        """Nothing is changed silently."""
        return analyzer_pb2.RemediateResponse()

    def Cancel(self, _request: Any, _context: Any) -> Any:
        """Every call is short; there is nothing to cancel."""
        return empty_pb2.Empty()


def _plain(properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = json_format.MessageToDict(properties)
    return found


def _response(found: Any) -> Any:
    return analyzer_pb2.AnalyzeResponse(
        diagnostics=[_diagnostic(violation, urn) for violation, urn in found]
    )


def _diagnostic(violation: Violation, urn: str) -> Any:
    return analyzer_pb2.AnalyzeDiagnostic(
        policyName=violation.rule,
        policyPackName=NAME,
        policyPackVersion=VERSION,
        description=DESCRIPTIONS[violation.rule],
        message=f"{violation.where}: {violation.message}",
        enforcementLevel=analyzer_pb2.MANDATORY,
        urn=urn,
    )


def main() -> None:
    """Serve until the engine ends."""
    serve(lambda to: analyzer_pb2_grpc.add_AnalyzerServicer_to_server(Analyzer(), to))
