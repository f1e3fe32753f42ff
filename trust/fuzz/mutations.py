"""Changes to bytes, text and trees of JSON that are likely to confuse a reader. All follow from a `random.Random`."""

from __future__ import annotations

import copy
import json
import pickle
import random
from collections.abc import Callable
from typing import Any

CANARY = "DPMCMC_FUZZ_CANARY"
"""A file of this name, or a variable of the environment, is what code in an input makes when it is run."""
CANARY_MODULE = "dpmcmc_fuzz_canary"
"""A module that can be imported, and that nothing but an input names."""


class _Bomb:
    """An object whose pickle makes the canary when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (CANARY, "w")


PICKLE = pickle.dumps(_Bomb(), protocol=2)
CODE = (
    f"!!python/object/apply:os.system ['touch {CANARY}']",
    f"!!python/object/apply:os.putenv [{CANARY}, x]",
    f"!!python/object/new:os.system ['touch {CANARY}']",
    f"!!python/module:{CANARY_MODULE}",
    f"!!python/name:{CANARY_MODULE}.anything",
    "!!python/tuple [1, 2]",
    f"__import__('os').system('touch {CANARY}')",
    f"__import__('{CANARY_MODULE}')",
    f"exec(\"open('{CANARY}','w')\")",
    f"{{(lambda: open('{CANARY}','w'))()}}",
    f"y ~ I(__import__('os').system('touch {CANARY}'))",
    f"y ~ {{open('{CANARY}', 'w')}}",
    f"'; ATTACH DATABASE '{CANARY}' AS x; CREATE TABLE x.t(i); --",
    f"{{{{ open('{CANARY}','w') }}}}",
    f"$(touch {CANARY})",
    f"`touch {CANARY}`",
    f"=cmd|'/C touch {CANARY}'!A0",
    f"<script>{CANARY}</script>",
    f"file:///{CANARY}",
    "https://127.0.0.1:9/x",
    "../../../../../../etc/passwd",
    "%s%s%n{0.__class__}",
)
WORDS = (
    *CODE,
    "",
    "\x00",
    "\ufeff",
    "\u202e",
    "\ud7ff",
    "𝕏" * 3,
    "null",
    "true",
    "~",
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-0.0",
    "1_000",
    "0x7fffffffffffffff",
    "9" * 400,
    "1" + "0" * 5000,
    "1e-400",
    "2026-02-30",
    "12:30:45",
    "[" * 2000,
    "{" * 2000,
    '{"a":' * 1500,
    "- " * 1500,
    "&a [*a, *a]",
    "<<: *a",
    "!!binary x",
    "!!set {a, b}",
    "!!timestamp 1",
    "!!float x",
    "!!int x",
    "%YAML 9.9\n---\n",
    "---\n...\n---\n",
    '"',
    "'",
    '""',
    ",,,,",
    "\r",
    "\n",
    "\t",
    "|",
    ">",
    "#",
    ":",
    "a" * 10000,
)
NUMBERS = (
    0,
    1,
    -1,
    2**31 - 1,
    2**31,
    2**32,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    10**40,
    -(10**400),
    1e308,
    5e-324,
    0.5,
)
BAD_BYTES = (b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3\x28", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\x80" * 9)
_LAUGHS = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]", *(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 9))]
)


def change_bytes(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Return a content with one to four changes; some splice in a piece of another valid content."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        content = rng.choice(_BYTE_CHANGES)(bytearray(content or b"\x00"), other or b"\x00", rng)
    return content


def _flip(content: bytearray, other: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 8))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


def _put(content: bytearray, other: bytes, rng: random.Random) -> bytes:
    place, width = rng.randrange(len(content)), rng.choice((1, 2, 4, 8))
    value = rng.choice((0, 1, 2 ** (8 * width) - 1, 2 ** (8 * width - 1), 2 ** (8 * width - 1) - 1, rng.getrandbits(8)))
    content[place : place + width] = value.to_bytes(8, rng.choice(("little", "big")))[-width:]
    return bytes(content)


def _insert(content: bytearray, other: bytes, rng: random.Random) -> bytes:
    piece = rng.choice((rng.randbytes(rng.randrange(1, 40)), rng.choice(BAD_BYTES), PICKLE, _word(rng)))
    place = rng.randrange(len(content) + 1)
    return bytes(content[:place]) + piece + bytes(content[place:])


def _delete(content: bytearray, other: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content))
    del content[place : place + rng.choice((1, 2, 4, 16, 200))]
    return bytes(content)


def _repeat(content: bytearray, other: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content))
    piece = bytes(content[place : place + rng.choice((1, 4, 30, 300))]) * rng.choice((1, 2, 50))
    return bytes(content[:place]) + piece + bytes(content[place:])


def _cut(content: bytearray, other: bytes, rng: random.Random) -> bytes:
    return bytes(content[: rng.randrange(len(content))])


def _splice(content: bytearray, other: bytes, rng: random.Random) -> bytes:
    return bytes(content[: rng.randrange(len(content))]) + other[rng.randrange(len(other)) :]


def _fill(content: bytearray, other: bytes, rng: random.Random) -> bytes:
    place, length = rng.randrange(len(content)), rng.choice((4, 16, 64, 512))
    content[place : place + length] = bytes([rng.choice((0, 255, rng.getrandbits(8)))]) * len(
        content[place : place + length]
    )
    return bytes(content)


_BYTE_CHANGES: tuple[Callable[[bytearray, bytes, random.Random], bytes], ...] = (
    _flip,
    _flip,
    _put,
    _put,
    _insert,
    _delete,
    _repeat,
    _cut,
    _splice,
    _fill,
)


def _word(rng: random.Random) -> bytes:
    return rng.choice(WORDS).encode("utf-8", "surrogatepass")


def change_text(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Return a text in which words and lines were exchanged; now and then one that is no text."""
    if rng.random() < 0.25:
        return change_bytes(content, other, rng)
    text = content.decode()
    for _ in range(rng.choice((1, 1, 2, 3))):
        lines = text.split("\n")
        kind = rng.randrange(7)
        if kind == 0:  # a word in place of another
            words = text.replace(",", " , ").split(" ")
            words[rng.randrange(len(words))] = rng.choice(WORDS)
            text = " ".join(words)
        elif kind == 1:
            place = rng.randrange(len(text) + 1)
            text = text[:place] + rng.choice(WORDS) + text[place:]
        elif kind == 2:
            lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
            text = "\n".join(lines)
        elif kind == 3:
            del lines[rng.randrange(len(lines))]
            text = "\n".join(lines)
        elif kind == 4:
            number = str(rng.choice(NUMBERS))
            place = rng.randrange(len(text) + 1)
            text = text[:place] + number + text[place + len(number) :]
        elif kind == 5:
            rng.shuffle(lines)
            text = "\n".join(lines)
        else:
            text = rng.choice((text.replace(",", ";"), text.replace("\n", "\r"), text.replace('"', ""), text * 2))
    if rng.random() < 0.02:
        where = rng.choice(("17", "integer", "age", "fields", "nothing"))
        text = f"{_LAUGHS}\n{text.replace(where, '*a8', 1)}"
    encoding = rng.choice(("utf-8",) * 12 + ("utf-16", "utf-32", "latin-1"))
    return text.encode(encoding, "replace")


def value(rng: random.Random, depth: int = 0) -> Any:
    """Return any value that JSON can hold, and some that it hardly can."""
    kind = rng.randrange(10)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind < 6:
        return rng.choice(WORDS)
    if kind == 6:
        return rng.choice((None, True, False))
    if kind == 7:
        return rng.choice((float("nan"), float("inf"), -float("inf"), -1.5, "1/3", "-1/0", "0" * 70))
    if depth > 3:
        return None
    if kind == 8:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {str(rng.choice(WORDS))[:30]: value(rng, depth + 1) for _ in range(rng.randrange(4))}


def change_tree(tree: Any, rng: random.Random) -> Any:
    """Return a tree of JSON with one to three changes: another value, type, name, one less, one more, one twice."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        parents = [one for one in _nodes(tree) if isinstance(one, dict | list) and one]
        if not parents:
            return value(rng)
        parent = rng.choice(parents)
        key: Any = rng.choice(list(parent)) if isinstance(parent, dict) else rng.randrange(len(parent))
        kind = rng.randrange(9)
        if kind == 0:
            del parent[key]
        elif kind == 1 and isinstance(parent, dict):
            parent[rng.choice(WORDS)[:200]] = parent.pop(key)
        elif kind == 2 and isinstance(parent, dict):
            parent[rng.choice(WORDS)[:200]] = value(rng)
        elif kind == 2 and isinstance(parent, list):
            parent.append(copy.deepcopy(rng.choice(parent)))
        elif kind == 3:
            parent[key] = rng.choice(CODE)
        elif kind == 4 and isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
            number = parent[key]
            other = float(number) if isinstance(number, float) or abs(number) < 2**1000 else number + 1
            parent[key] = rng.choice((-number, number * 2, other, str(number), [number]))
        elif kind == 5:
            parent[key] = copy.deepcopy(rng.choice(list(_nodes(tree))))
        elif kind == 6:
            deep: Any = value(rng)
            for _ in range(rng.choice((3, 30, 120))):
                deep = [deep] if rng.random() < 0.5 else {"a": deep}
            parent[key] = deep
        else:
            parent[key] = value(rng)
    return tree


def _nodes(tree: Any) -> list[Any]:
    found: list[Any] = []
    waiting = [tree]
    while waiting and len(found) < 3000:
        node = waiting.pop()
        found.append(node)
        waiting += node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return found


def as_json(tree: Any, rng: random.Random) -> str:
    """Write a tree down, also one that is too deep for `json`; names may come twice."""
    try:
        text = json.dumps(tree, ensure_ascii=rng.random() < 0.5)
    except (RecursionError, ValueError):
        text = "[" * 100_000
    if rng.random() < 0.02:
        text = rng.choice(('{"epsilon": 1, "epsilon": 2, ' + text[1:], "[" * 100_000, text + text, text[:-1]))
    return text
