"""What waits for asynchronous copies and for messages, in machine code (SASS).

Copies from global to shared memory (LDGSTS, cp.async) arrive when they like, until DEPBAR waits for
them. Threads wait at an mbarrier (SYNCS) for messages of a cluster. Its phase has a parity: two
barriers take turns, so the n-th exchange has that of n / 2. A launch that begins early waits for
the one before it by ACQBULK (griddepcontrol.wait).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple


class Instruction(NamedTuple):
    """One of a listing.

    Attributes:
        address: where it stands.
        is_conditional: whether it has a predicate.
        name: such as "LDS", without what follows the dot.
        suffixes: that.
        operands: its text behind the name.
    """

    address: int
    is_conditional: bool
    name: str
    suffixes: str
    operands: tuple[str, ...]


Kind = Callable[[Instruction], bool]

_LINE = re.compile(r"/\*([0-9a-f]+)\*/\s+(@!?\w+\s+)?([A-Z][A-Z0-9]*)([\w.]*)\s*(.*?)\s*;")


def read(listing: str) -> list[Instruction]:
    """The instructions of a listing, as `diglot.tools.machine_code.read_listing` returns it."""
    return [
        Instruction(
            int(address, 16),
            bool(predicate),
            name,
            suffixes,
            tuple(part.strip().removesuffix(".reuse") for part in operands.split(",")),
        )
        for address, predicate, name, suffixes, operands in _LINE.findall(listing)
    ]


def is_copy(instruction: Instruction) -> bool:
    return instruction.name == "LDGSTS"


def is_wait(instruction: Instruction) -> bool:
    return instruction.name == "DEPBAR" and instruction.suffixes == ".LE"


def is_read(instruction: Instruction) -> bool:
    """Of what copies bring, which is read in whole accesses, or by a pointer of either kind."""
    return (instruction.name, "128" in instruction.suffixes) == ("LDS", True) or (
        instruction.name == "LD"
    )


def is_poll(instruction: Instruction) -> bool:
    return instruction.name == "SYNCS" and "PHASECHK" in instruction.suffixes


def is_arrival(instruction: Instruction) -> bool:
    return instruction.name == "SYNCS" and "ARRIVE" in instruction.suffixes


def successors(code: list[Instruction]) -> list[list[int]]:
    """By the number of an instruction, those that may follow it. Of calls, what they return to."""
    at = {instruction.address: i for i, instruction in enumerate(code)}
    result = []
    for i, instruction in enumerate(code):
        following = [i + 1] if i + 1 < len(code) else []
        if instruction.name in ("EXIT", "RET") and not instruction.is_conditional:
            following = []
        if instruction.name == "BRA":
            target = at[int(instruction.operands[-1], 16)]
            # BRA.DIV and the like, and BRA with a predicate among its operands, may go on.
            is_certain = not instruction.is_conditional and len(instruction.operands) == 1
            following = [target] if is_certain else [*following, target]
        result.append(following)
    return result


def cycles(follow: list[list[int]]) -> Iterator[set[int]]:
    """Sets of more than one instruction in which each is reached from each (Tarjan, 1972)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    open_ones: list[int] = []
    is_open: set[int] = set()
    for root in range(len(follow)):
        if root in index:
            continue
        walk = [(root, iter(follow[root]))]
        index[root] = low[root] = len(index)
        open_ones.append(root)
        is_open.add(root)
        while walk:
            node, rest = walk[-1]
            for other in rest:
                if other not in index:
                    index[other] = low[other] = len(index)
                    open_ones.append(other)
                    is_open.add(other)
                    walk.append((other, iter(follow[other])))
                    break
                if other in is_open:
                    low[node] = min(low[node], index[other])
            else:
                walk.pop()
                if walk:
                    low[walk[-1][0]] = min(low[walk[-1][0]], low[node])
                if low[node] == index[node]:
                    found = {open_ones.pop()}
                    while node not in found:
                        found.add(open_ones.pop())
                    is_open -= found
                    if len(found) > 1:
                        yield found


def _any(code: list[Instruction], numbers: Iterable[int], kind: Kind) -> bool:
    return any(kind(code[i]) for i in numbers)


def faults_of_copies(listing: str) -> list[str]:
    """Faults of a kernel's waits for its asynchronous copies."""
    code = read(listing)
    first_copy = next((i for i, one in enumerate(code) if is_copy(one)), None)
    if first_copy is None:
        return []
    faults = []
    behind = code[first_copy:]
    first_wait = next((i for i, one in enumerate(behind) if is_wait(one)), len(behind))
    if _any(behind, range(first_wait), is_read):
        faults.append("what is copied is read before the first wait")
    if first_wait == len(behind):
        faults.append("nothing waits for copies")
    # Whoever copies again and again waits each time round.
    follow = [[] if is_wait(one) else of for one, of in zip(code, successors(code), strict=True)]
    for cycle in cycles(follow):
        if _any(code, cycle, is_copy) and _any(code, cycle, is_read):
            faults.append("a loop copies and reads, and goes round without a wait")
    return faults


WORD = 0xFFFFFFFF
_REGISTER = re.compile(r"\bU?R\d+\b")
_MOVES = ("MOV", "UMOV", "R2UR", "IMAD.MOV.U32")


class Counted:
    """What a register of a kernel is computed from."""

    def __init__(self, code: list[Instruction]) -> None:
        self.code = code
        self.before: list[list[int]] = [[] for _ in code]
        for i, following in enumerate(successors(code)):
            for other in following:
                self.before[other].append(i)

    def definitions(self, at: int, register: str) -> set[int]:
        """The instructions that may have written what instruction `at` reads in a register."""
        found, seen, open_ones = set(), set(), list(self.before[at])
        while open_ones:
            one = open_ones.pop()
            if one in seen:
                continue
            seen.add(one)
            writes = self.code[one].operands[0] == register
            if writes:
                found.add(one)
            if not writes or self.code[one].is_conditional:
                open_ones += self.before[one]
        return found

    def value(self, at: int, operand: str, counter: int, counters: set[str]) -> int:
        """Of an operand of instruction `at`, where what counts is at `counter`.

        That is a register that is written at several places or not by plain arithmetic. It is added
        to `counters`.
        """
        if operand in ("RZ", "URZ"):
            return 0
        if re.fullmatch(r"-?0x[0-9a-f]+", operand):
            return int(operand, 16) & WORD
        written = self.definitions(at, operand)
        if len(written) == 1:
            (source,) = written
            one = self.code[source]
            arguments = [
                lambda i=i: self.value(source, one.operands[i], counter, counters)
                for i in range(len(one.operands))
            ]
            value = None if one.is_conditional else _computed(one, arguments)
            if value is not None:
                return value & WORD
        counters.add(operand)
        return counter

    def sources(self, at: int, operand: str) -> set[str]:
        """All registers that an operand of instruction `at` is computed from."""
        registers: set[str] = set()
        seen: set[int] = set()
        open_ones = [(at, register) for register in _REGISTER.findall(operand)]
        while open_ones:
            place, register = open_ones.pop()
            registers.add(register)
            for one in self.definitions(place, register) - seen:
                seen.add(one)
                for source in self.code[one].operands[1:]:
                    open_ones += [(one, other) for other in _REGISTER.findall(source)]
        return registers

    def alternates(self, poll: int) -> bool:
        """Whether a poll has its barrier and its parity of one counter."""
        counters: set[str] = set()
        self.value(poll, self.code[poll].operands[-1], 1, counters)
        return bool(counters & self.sources(poll, self.code[poll].operands[-2]))

    def parities(self, poll: int) -> list[int] | None:
        """The parities that a poll waits for, where its counter is 0, 1, and so on.

        None: it does not depend on one counter. A poll that waits for one parity repeats it.
        """
        counters: set[str] = set()
        operand = self.code[poll].operands[-1]
        values = [self.value(poll, operand, n, counters) >> 31 for n in range(8)]
        return values if len(counters) <= 1 else None


def _computed(one: Instruction, of: list[Callable[[], int]]) -> int | None:
    """What an instruction computes of its operands; None if it is not one that parities take."""
    name, suffixes = one.name, one.suffixes
    if name + suffixes in _MOVES:
        return of[-1]()
    name = name.removeprefix("U")
    if name == "IMAD" and suffixes in (".SHL.U32", ".U32", ""):
        return of[1]() * of[2]() + of[3]()
    if name == "SHF" and suffixes == ".L.U32":
        return of[1]() << of[2]()
    if name == "SHF" and suffixes == ".R.U32.HI":
        return of[3]() >> of[2]()
    if name == "LOP3" and suffixes == ".LUT":
        a, b, c, table = (of[i]() for i in (1, 2, 3, 4))
        inputs = [(a >> bit & 1) << 2 | (b >> bit & 1) << 1 | c >> bit & 1 for bit in range(32)]
        return sum((table >> one & 1) << bit for bit, one in enumerate(inputs))
    return None


def faults_of_messages(listing: str) -> list[str]:
    """Faults of a kernel's waits for messages."""
    code = read(listing)
    if not any(is_poll(one) for one in code):
        return []
    counted = Counted(code)
    polls = [i for i, one in enumerate(code) if is_poll(one)]
    # One that fails is repeated out of the way, of the same operands.
    firsts = {code[poll].operands: poll for poll in reversed(polls)}
    repeated = [
        cycle
        for cycle in cycles(successors(code))
        if any(
            one.name == "SYNCS" and "ARRIVE" in one.suffixes for one in map(code.__getitem__, cycle)
        )
    ]
    faults = []
    for poll in firsts.values():
        is_repeated = any(poll in cycle for cycle in repeated)
        expected = [n // 2 % 2 for n in range(8)] if is_repeated else [0] * 8
        found = counted.parities(poll)
        if found is None:
            faults.append("how a parity is computed is not understood")
        elif found != expected:
            faults.append(f"of {'many exchanges' if is_repeated else 'one'} parities are {found}")
        elif is_repeated and not counted.alternates(poll):
            faults.append("every exchange is by one barrier")
    return faults


def faults_of_early_start(listing: str) -> list[str]:
    """Faults of a kernel whose launch may begin while the one before it runs."""
    code = read(listing)
    wait = next((i for i, one in enumerate(code) if one.name == "ACQBULK"), None)
    if wait is None:
        return ["it does not wait for the launch before"]
    before = {one.name for one in code[:wait]} & {
        "LD",
        "LDG",
        "LDGSTS",
        "ST",
        "STG",
        "RED",
        "ATOMG",
    }
    return [f"{name} stands before the wait for the launch before" for name in sorted(before)]
