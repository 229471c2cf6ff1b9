"""What a batch script asks of the bridge: `#BRIDGE` lines, and in which pods its body runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

Mode = Literal["spmd", "leader"]
MODES: Final = ("auto", "spmd", "leader")
OPTIONS: Final = ("mode", "image")
#: Overrides `#BRIDGE mode=`, for one submission: `sbatch --export=ALL,RAILWELD_BRIDGE_MODE=spmd`.
MODE_VARIABLE: Final = "RAILWELD_BRIDGE_MODE"
IMAGE_VARIABLE: Final = "RAILWELD_BRIDGE_IMAGE"

#: Start one process group per node and find each other: meant to be run on every node.
LAUNCHERS: Final = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate")
#: Reach the other nodes by themselves.
FAN_OUT: Final = (
    "srun", "mpirun", "mpiexec", "prun", "orterun", "deepspeed", "pdsh", "clush", "ssh", "ray",
    "parallel-ssh", "dask-mpi", "horovodrun",
)  # fmt: skip


#: Inside double quotes, where commands are not looked for otherwise.
_SUBSTITUTED: Final = re.compile(rf"(?m)^[^#\n]*\"[^\"\n]*(?:\$\(|`)\s*({'|'.join(FAN_OUT)})\s")


class ScriptError(ValueError):
    """The script asks for what is not there."""


@dataclass(frozen=True)
class Wishes:
    """What a script asks for."""

    mode: Mode
    reason: str
    image: str | None


def wishes(script: bytes, environment: Mapping[str, str], nodes: int) -> Wishes:
    """Read a script; variables of the submission win over its `#BRIDGE` lines.

    Raises:
        ScriptError: an unknown option or mode.
    """
    text = script.decode("utf-8", "replace")
    options = directives(text)
    mode = environment.get(MODE_VARIABLE) or options.get("mode", "auto")
    image = environment.get(IMAGE_VARIABLE) or options.get("image")
    if mode not in MODES:
        raise ScriptError(f"mode: found {mode!r}, expected one of {', '.join(MODES)}")
    if mode != "auto":
        by = MODE_VARIABLE if environment.get(MODE_VARIABLE) else "#BRIDGE"
        return Wishes("spmd" if mode == "spmd" else "leader", f"{by} says so", image)
    if nodes == 1:
        return Wishes("leader", "one node", image)
    chosen, reason = detect(text)
    return Wishes(chosen, reason, image)


def directives(text: str) -> dict[str, str]:
    """`#BRIDGE name=value ...` lines before the first command, as sbatch reads its own."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            break
        if not stripped.startswith("#BRIDGE"):
            continue
        for word in stripped.split()[1:]:
            name, equals, value = word.partition("=")
            if name not in OPTIONS or not equals or not value:
                raise ScriptError(
                    f"line {number}: found {word!r} after #BRIDGE, expected "
                    + " or ".join(f"{option}=..." for option in OPTIONS)
                )
            found[name] = value
    return found


def detect(text: str) -> tuple[Mode, str]:
    """Whether the body is meant to run on every node.

    Slurm's own meaning of a batch script is `leader`: it runs once, on the first node. `spmd` needs
    evidence: a launcher that is told of several nodes, and nothing that reaches other nodes.
    """
    found: str | None = None
    inner = _SUBSTITUTED.search(text)
    if inner:
        return "leader", f"{inner.group(1)} reaches the other nodes by itself"
    for words in _commands(text):
        command = _command(words)
        if command is None:
            continue
        name = command[0].rsplit("/", 1)[-1]
        if name in FAN_OUT:
            return "leader", f"{name} reaches the other nodes by itself"
        if name.startswith("$"):
            # A launcher in a variable may be anything.
            return "leader", f"{name} is a command whose name is not known before it runs"
        launcher = _launcher(name, command)
        if launcher is not None and found is None:
            found = launcher
    if found:
        return "spmd", f"{found} is started on every node"
    return "leader", "no launcher that runs on every node"


def _launcher(name: str, words: list[str]) -> str | None:
    """A launcher of several nodes, by how it is called."""
    if re.fullmatch(r"python[\d.]*", name):
        module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
        if module not in LAUNCHERS[1:3] and module != "accelerate.commands.launch":
            return None
        name = module
    elif name == "accelerate":
        if "launch" not in words:
            return None
    elif name != "torchrun":
        return None
    options = " ".join(words[1:])
    if name.startswith("accelerate"):
        told = re.search(r"--(num_machines|machine_rank|main_process_ip|rdzv)", options)
    else:
        told = re.search(r"--(nnodes|rdzv[-_]endpoint|node[-_]rank|master[-_]addr)", options)
        if told and re.search(r"--nnodes[= ]['\"]?1(?![\d:])", options):
            return None
    return name if told else None


_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_PREFIXES: Final = frozenset(
    {"exec", "time", "env", "nohup", "command", "then", "do", "else", "if", "while", "until", "!",
     "{", "(", "sudo", "timeout", "numactl", "nice", "stdbuf", "elif", "taskset", "set"}
)  # fmt: skip


def _command(words: list[str]) -> list[str] | None:
    """The words from the command on: assignments, keywords and wrappers before it are left out."""
    position, wrapped = 0, False
    while position < len(words):
        word = words[position]
        if _ASSIGNMENT.match(word) or word in _PREFIXES:
            wrapped = wrapped or word in ("timeout", "numactl", "nice", "stdbuf", "taskset", "env")
        elif wrapped and (word.startswith("-") or re.fullmatch(r"[\d.]+[smhd]?", word)):
            pass
        else:
            return words[position:]
        position += 1
    return None


def _commands(text: str) -> Iterator[list[str]]:
    """Simple commands of a shell script as words; comments, here-documents and `'...'` left out.

    Not a shell: what is built at run time is not seen. That errs towards `leader`.
    """
    lines = iter(text.replace("\\\n", " ").splitlines())
    for line in lines:
        yield from _split(_uncommented(line))
        for marker in re.findall(r"<<-?\s*['\"]?([A-Za-z_]\w*)['\"]?", _unquoted(line)):
            for inner in lines:
                if inner.strip() == marker:
                    break


def _unquoted(line: str) -> str:
    return re.sub(r"(?<!<)'[^']*'(?!\w)", "''", line) if "<<" not in line else line


def _uncommented(line: str) -> str:
    quote = ""
    for position, char in enumerate(line):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (position == 0 or line[position - 1] in " \t;&|("):
            return line[:position]
    return line


#: Between simple commands; `${` is not one.
_SEPARATORS: Final = re.compile(r"[;|&()`}]|(?<!\$)\{")
_QUOTED: Final = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"")


def _split(line: str) -> Iterator[list[str]]:
    """Words of each simple command of a line; a quoted text is one word."""
    # Blanks and separators inside quotes must not make words or commands.
    plain = _QUOTED.sub(lambda match: re.sub(r"[\s;|&(){}`]", "_", match[0][1:-1]) or "_", line)
    for command in _SEPARATORS.split(plain):
        words = command.split()
        if words:
            yield words


_IMAGE: Final = re.compile(
    r"(?P<path>[a-zA-Z0-9][a-zA-Z0-9.:_/-]*?)(?P<tag>:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?"
    r"(?P<digest>@sha256:[0-9a-f]{64})?\Z"
)


def check_image(image: str, registries: tuple[str, ...]) -> None:
    """Refuse an image that names no build or comes from elsewhere; the API server does so too.

    Raises:
        ScriptError: with what was expected.
    """
    match = _IMAGE.match(image)
    if match is None or ".." in image or "//" in image:
        raise ScriptError(f"image: found {image!r}, expected REGISTRY/PATH:TAG")
    if not match["digest"] and match["tag"] in (None, ":latest"):
        raise ScriptError(
            f"image: found {image}, expected a tag other than latest, or a digest: nodes would "
            "run different builds"
        )
    if registries and not any(image.startswith(each.rstrip("/") + "/") for each in registries):
        raise ScriptError(
            f"image: found {image}, expected one from {', '.join(registries)} "
            "(railweld_job_registries)"
        )
