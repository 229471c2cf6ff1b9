"""Words of a command line against a grammar, the way EOS reads them.

Keywords may be cut to any unambiguous prefix. A rule's pattern is one line of text:

    mtu <mtu:68-9214>
    priority-flow-control priority <priority:0-7> (drop|no-drop)
    qos map dscp <dscp:0-63>+ to traffic-class <tc:0-7>
    ingress headroom [bytes|cells] <size:1-33554432>

`[ ]` is optional, `( | )` a choice, `<name:type>` a value (`+` one or more), and `word@gate`
a keyword that some platforms refuse: the caller's gate function is asked by that name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final, Generic, TypeVar

T = TypeVar("T")

Check = Callable[[str], str | None]
#: Given a gate's name and the word, the text of the refusal, or None when the word is known.
Gate = Callable[[str, str], str | None]

INVALID: Final = "% Invalid input"
INCOMPLETE: Final = "% Incomplete command"
AMBIGUOUS: Final = "% Ambiguous command"
UNAVAILABLE: Final = "% Unavailable command (not supported on this hardware platform)"


class CliError(Exception):
    """A line that EOS refuses, with the place of the word it stumbled over."""

    def __init__(self, text: str, token: int | None = None, word: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.token = token
        self.word = word

    def render(self, *, suffix: bool) -> str:
        """Print as the terminal shows it; releases differ in whether they name the token."""
        if suffix and self.token is not None:
            return f"{self.text} (at token {self.token}: '{self.word}')"
        return self.text


# --------------------------------------------------------------------------- value types


def _integer(low: int, high: int) -> Check:
    def check(word: str) -> str | None:
        return (
            str(int(word))
            if word.isascii() and word.isdecimal() and low <= int(word) <= high
            else None
        )

    return check


def _decimal(low: float, high: float, places: int) -> Check:
    def check(word: str) -> str | None:
        match = re.fullmatch(r"\d+(?:\.(\d+))?", word)
        if match is None or len(match[1] or "") > places or not low <= float(word) <= high:
            return None
        # EOS prints its own form: always two decimals, a third only where it says something.
        text = f"{float(word):.3f}"
        return text[:-1] if text.endswith("0") else text

    return check


def _word(word: str) -> str | None:
    return word


def _check_for(kind: str, types: Mapping[str, Check]) -> Check:
    if kind in types:
        return types[kind]
    if kind in {"word", "line"}:
        return _word
    if match := re.fullmatch(r"(\d+)-(\d+)", kind):
        return _integer(int(match[1]), int(match[2]))
    if match := re.fullmatch(r"dec(\d),([\d.]+),([\d.]+)", kind):
        return _decimal(float(match[2]), float(match[3]), int(match[1]))
    raise ValueError(
        f"grammar: found value type {kind!r}, expected a range, word, line or decN,a,b"
    )


# --------------------------------------------------------------------------- tree


@dataclass(frozen=True)
class _Token:
    """One place in an expanded pattern."""

    word: str = ""
    gate: str = ""
    param: str = ""
    kind: str = ""
    many: bool = False


@dataclass
class _Node(Generic[T]):
    words: dict[str, _Node[T]] = field(default_factory=dict)
    gates: dict[str, str] = field(default_factory=dict)
    params: dict[tuple[str, str], tuple[Check, bool, _Node[T]]] = field(default_factory=dict)
    rule: T | None = None
    negated: T | None = None


@dataclass(frozen=True)
class Match(Generic[T]):
    """A line that a rule accepts: its words spelt out and its values."""

    rule: T
    words: tuple[str, ...]
    values: Mapping[str, str]
    lists: Mapping[str, tuple[str, ...]]

    @property
    def text(self) -> str:
        """The whole line in canonical spelling."""
        return " ".join(self.words)


_PIECE: Final = re.compile(r"\[|\]|\(|\)|\||<[^>]+>\+?|[^\s\[\]()|<>]+")


def _parse_token(piece: str) -> _Token:
    if piece.startswith("<"):
        many = piece.endswith("+")
        name, _, kind = piece.rstrip("+").strip("<>").partition(":")
        return _Token(param=name, kind=kind or "word", many=many)
    word, _, gate = piece.partition("@")
    return _Token(word=word, gate=gate)


def _expand(pattern: str) -> list[tuple[_Token, ...]]:
    """Every sequence of tokens that a pattern stands for."""
    pieces = _PIECE.findall(pattern)
    position = 0

    def sequence(closing: str) -> list[tuple[_Token, ...]]:
        nonlocal position
        branches: list[tuple[_Token, ...]] = []
        current: list[list[tuple[_Token, ...]]] = []
        while position < len(pieces):
            piece = pieces[position]
            position += 1
            if piece == "[":
                current.append([(), *sequence("]")])
            elif piece == "(":
                current.append(sequence(")"))
            elif piece == "|":
                branches += [sum(choice, ()) for choice in product(*current)]
                current = []
            elif piece == closing:
                break
            else:
                current.append([(_parse_token(piece),)])
        return branches + [sum(choice, ()) for choice in product(*current)]

    return sequence("")


class Grammar(Generic[T]):
    """The rules of one CLI mode."""

    def __init__(self, types: Mapping[str, Check] | None = None) -> None:
        self._root: _Node[T] = _Node()
        self._types = dict(types or {})

    def add(self, pattern: str, rule: T, *, negated_from: int | None = None) -> None:
        """Add a rule. Its `no` form is complete from `negated_from` words on."""
        for tokens in _expand(pattern):
            node = self._root
            for depth, token in enumerate(tokens, start=1):
                node = self._step(node, token)
                if negated_from is not None and depth >= negated_from and node.negated is None:
                    node.negated = rule
            if node.rule is None:
                node.rule = rule

    def _step(self, node: _Node[T], token: _Token) -> _Node[T]:
        if token.word:
            if token.gate:
                node.gates[token.word] = token.gate
            return node.words.setdefault(token.word, _Node())
        key = (token.param, token.kind)
        if key not in node.params:
            follower: _Node[T] = _Node()
            check = _check_for(token.kind, self._types)
            node.params[key] = (check, token.kind == "line", follower)
            if token.many:
                follower.params[key] = (check, False, follower)
        return node.params[key][2]

    def match(
        self,
        tokens: Sequence[str],
        *,
        negated: bool = False,
        offset: int = 0,
        gate: Gate | None = None,
    ) -> Match[T]:
        """Read a line; raises `CliError` with the place where it went wrong."""
        node = self._root
        words: list[str] = []
        lists: dict[str, list[str]] = {}
        index = 0
        while index < len(tokens):
            token = tokens[index]
            step = self._keyword(node, token, index + offset, gate)
            if step is not None:
                word, node = step
                words.append(word)
                index += 1
                continue
            for (name, _), (check, rest, follower) in node.params.items():
                value = " ".join(tokens[index:]) if rest else check(token)
                if value is not None:
                    lists.setdefault(name, []).append(value)
                    words.append(value)
                    node = follower
                    index = len(tokens) if rest else index + 1
                    break
            else:
                raise CliError(INVALID, index + offset, token)
        rule = node.rule
        if negated and rule is None:
            rule = node.negated
        if rule is None:
            raise CliError(INCOMPLETE)
        return Match(
            rule,
            tuple(words),
            {name: values[-1] for name, values in lists.items()},
            {name: tuple(values) for name, values in lists.items()},
        )

    def _keyword(
        self, node: _Node[T], token: str, place: int, gate: Gate | None
    ) -> tuple[str, _Node[T]] | None:
        lowered = token.lower()
        if lowered in node.words:
            word = lowered
        else:
            # A value that fits beats a cut keyword; free words never do.
            for (_, kind), (check, _, _) in node.params.items():
                if kind not in {"word", "line"} and check(token) is not None:
                    return None
            fits = [word for word in node.words if word.startswith(lowered)]
            if len(fits) > 1:
                raise CliError(AMBIGUOUS)
            if not fits:
                return None
            word = fits[0]
        if gate is not None and word in node.gates:
            text = gate(node.gates[word], word)
            if text is not None:
                raise CliError(text, place if text == UNAVAILABLE else None, token)
        return word, node.words[word]
