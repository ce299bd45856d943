"""Reads PTX text into entries of instructions with resolved registers, labels and scopes.
It knows the grammar only: what an opcode means, or whether it exists, is decided when it is bound."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from .errors import ParseError
from .ptx_text import Entry, Loc, PtxText, Scope, Variable
from .types import TYPES, Imm, Instr, Label, Mem, Not, Pair, Reg, Special, Sym, Vec, Void

_LINE_DIRECTIVE = re.compile(r"^[ \t]*\.(loc|file|version|target|address_size)\b([^\n]*)", re.M)
_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.S)
_BREAK = re.compile(r'"(?:\\.|[^"\\])*"|[;{}]')
_LABEL = re.compile(r"\s*([$%\w]+)\s*:(?!:)")
_RANGE = re.compile(r"([%$\w]+?)<(\d+)>$")
_NUMBERED = re.compile(r"(.*?)(\d+)$")
_GUARD = re.compile(r"@\s*(!?)\s*([%$\w]+)\s+")
_OPCODE = re.compile(r"([a-zA-Z_][\w.:]*)\s*(.*)", re.S)
_INT = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)[uU]?$")
_FLOAT_BITS = re.compile(r"(-?)0([fFdD])([0-9a-fA-F]+)$")
_SUM = re.compile(r"\s*([^+\-\s]+)\s*(?:\+\s*(-?\s*\w+)|(-\s*\w+))?\s*$")
_VARIABLE = re.compile(
    r"(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\b[\s\w.]*?\s)?([$%\w]+)\s*((?:\[\s*\d*\s*\])*)\s*(?:=\s*(.*))?$", re.S
)
_PARAM = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\s*(?:\.\w+\s*)*(?:\.align\s+\d+\s+)?)?([$%\w]+)\s*(?:\[\s*(\d*)\s*\])?\s*$"
)
_SPECIAL = re.compile(
    r"%(?:tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid|cluster_ctarank|cluster_nctarank|"
    r"is_explicit_cluster|laneid|warpid|nwarpid|smid|nsmid|gridid|lanemask_\w+|clock|clock_hi|clock64|globaltimer|globaltimer_lo|"
    r"globaltimer_hi|dynamic_smem_size|total_smem_size|aggr_smem_size|reserved_smem_offset_\w+)(?:\.[xyzw])?$"
)
_SPACES = ("shared", "global", "const", "local", "param")


def parse(text: str) -> PtxText:
    """Parse a PTX file; raises ParseError naming the line."""
    return _Parser(text).run()


def _blank(match: re.Match[str]) -> str:
    found = match.group(0)
    return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)


def split_operands(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        if char in "[{(":
            depth += 1
        elif char in "]})":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    tail = text[start:].strip()
    return [*parts, tail] if tail or parts else []


def _integer(text: str) -> int:
    text = text.replace(" ", "").rstrip("uU")
    sign = -1 if text.startswith("-") else 1
    body = text.lstrip("+-")
    if len(body) > 1 and body[0] == "0" and body[1].isdigit():
        return sign * int(body, 8)
    return sign * int(body, 0)


class _Parser:
    def __init__(self, text: str) -> None:
        self.out = PtxText()
        text = _COMMENT.sub(_blank, text)
        line = seen = 0
        for match in _LINE_DIRECTIVE.finditer(text):
            line += text.count("\n", seen, match.start())
            seen = match.start()
            self._line_directive(match, line + 1)
        self.text = _LINE_DIRECTIVE.sub(_blank, text)
        self.entry: Entry | None = None
        self.scope = Scope(None)
        self.skipping = 0
        self.fixups: list[tuple[Instr, int, str, Scope]] = []
        self.line = 1
        self._counted = 0

    def _line_directive(self, match: re.Match[str], line: int) -> None:
        kind, rest = match.group(1), match.group(2).strip()
        if kind == "target":
            self.out.target = rest
        elif kind == "file":
            number, name = rest.split(None, 1)
            self.out.files[int(number)] = name.split('"')[1]
        elif kind == "loc":
            head = [int(x) for x in rest.split(",")[0].split()[:3]]
            at = re.search(r"inlined_at (\d+) (\d+) (\d+)", rest)
            parent = (int(at.group(1)), int(at.group(2)), int(at.group(3))) if at else None
            self.out.locs.append(Loc(line, head[0], head[1], head[2], parent))

    def run(self) -> PtxText:
        """Cut the text at `;`, scope braces and the end of bodies; a brace inside a statement opens a vector."""
        begin = vector = 0
        for match in _BREAK.finditer(self.text):
            token = match.group(0)
            if token[0] == '"':
                continue
            if vector and token != ";":
                vector += 1 if token == "{" else -1
                continue
            body = self.text[begin : match.start()]
            if token == "{" and not self._is_scope(body):
                vector = 1
                continue
            vector = 0
            self._advance_line(begin + len(body) - len(body.lstrip()))
            self._token(token, body)
            begin = match.end()
        return self.out

    def _is_scope(self, body: str) -> bool:
        rest = body
        while label := _LABEL.match(rest):
            rest = rest[label.end() :]
        return not rest.strip() or (self.entry is None and re.search(r"\.(entry|func|section)\b", body) is not None)

    def _advance_line(self, at: int) -> None:
        self.line += self.text.count("\n", self._counted, at)
        self._counted = at

    def _token(self, token: str, body: str) -> None:
        if self.skipping:
            self.skipping += {"{": 1, "}": -1, ";": 0}[token]
        elif token == "{":
            self._open(body)
        elif body.strip():
            self._statement(body)
        if token == "}" and self.entry is not None:
            self._close()

    def _open(self, body: str) -> None:
        if self.entry is None:
            if ".entry" in body:
                self._start_entry(body)
            else:
                self.skipping = 1
            return
        self._take_labels(body)
        self.scope = Scope(self.scope)

    def _close(self) -> None:
        assert self.entry is not None
        if self.scope.parent is not None:
            self.scope = self.scope.parent
            return
        for instr, position, name, scope in self.fixups:
            instr.operands[position] = self._find_label(name, scope, instr)
        self.fixups = []
        self.entry = None

    def _start_entry(self, body: str) -> None:
        match = re.search(r"\.entry\s+([$%\w]+)\s*(?:\((.*)\))?(.*)$", body, re.S)
        if match is None:
            raise ParseError(f"PTX line {self.line}: cannot read entry {body.strip()[:60]!r}")
        self.entry = Entry(match.group(1), variables=dict(self.out.variables))
        offset = 0
        for text in split_operands(match.group(2) or ""):
            param = self._param(text, offset)
            offset = param.offset + param.nbytes
            self.entry.params.append(param)
            self.entry.variables[param.name] = param
        for name, numbers in re.findall(r"\.(\w+)([\s\d,]*)", match.group(3)):
            self.entry.directives[name] = tuple(int(x) for x in re.findall(r"\d+", numbers))
        self.out.entries[self.entry.name] = self.entry
        self.scope = Scope(None)

    def _param(self, text: str, offset: int) -> Variable:
        match = _PARAM.match(text.strip())
        if match is None:
            raise ParseError(f"PTX line {self.line}: cannot read parameter {text.strip()!r}")
        size = TYPES[match.group(2)][0] // 8
        align = int(match.group(1) or size)
        nbytes = size * int(match.group(4)) if match.group(4) else size
        return Variable(match.group(3), "param", nbytes, align, -(-offset // align) * align)

    def _take_labels(self, body: str) -> str:
        assert self.entry is not None
        while match := _LABEL.match(body):
            self.scope.labels[match.group(1)] = len(self.entry.instrs)
            body = body[match.end() :]
        return body

    def _statement(self, body: str) -> None:
        if self.entry is not None:
            body = self._take_labels(body)
        body = body.strip()
        if not body:
            return
        if body.startswith("."):
            self._directive(body)
        elif self.entry is not None:
            self._instruction(body)
        else:
            raise ParseError(f"PTX line {self.line}: {body[:60]!r} stands outside a function")

    def _directive(self, body: str) -> None:
        word = body.split(None, 1)[0]
        if word == ".reg":
            self._registers(body[4:])
        elif word in (".pragma", ".func", ".alias", ".branchtargets", ".callprototype") or ".func" in body:
            return
        else:
            self._variable(body)

    def _registers(self, text: str) -> None:
        match = re.match(r"\s*\.(\w+)\s+(.*)", text, re.S)
        if match is None or match.group(1) not in TYPES:
            raise ParseError(f"PTX line {self.line}: cannot read register declaration .reg{text}")
        kind = _kind(match.group(1))
        for name in split_operands(match.group(2)):
            if ranged := _RANGE.match(name):
                self.scope.ranges[ranged.group(1)] = (kind, int(ranged.group(2)))
            else:
                self.scope.registers[name] = self._new_register(kind, name)

    def _new_register(self, kind: str, name: str) -> Reg:
        assert self.entry is not None
        index = self.entry.counts[kind]
        self.entry.counts[kind] = index + 1
        return Reg(kind, index, name)

    def _variable(self, body: str) -> None:
        extern = ".extern" in body.split()[:2]
        body = re.sub(r"^(\s*\.(extern|visible|weak|common)\s+)+", "", body)
        space = body[1:].split(None, 1)[0]
        rest = body[1 + len(space) :].strip()
        match = _VARIABLE.match(re.sub(r"\.attribute\([^)]*\)\s*", "", rest))
        if space not in _SPACES or match is None:
            raise ParseError(f"PTX line {self.line}: cannot read {body[:80]!r}")
        size = TYPES[match.group(2)][0] // 8
        nbytes = size
        for extent in re.findall(r"\[\s*(\d*)\s*\]", match.group(4)):
            nbytes *= int(extent) if extent else 0
        init = _initialiser(match.group(5), size) if match.group(5) else b""
        align = int(match.group(1) or size)
        variable = Variable(match.group(3), space, nbytes, align, 0, init, extern or nbytes == 0)
        (self.entry.variables if self.entry is not None else self.out.variables)[variable.name] = variable

    def _instruction(self, body: str) -> None:
        assert self.entry is not None
        guard, negated, text = None, False, " ".join(body.split())
        if match := _GUARD.match(body):
            guard, negated = self._register(match.group(2)), bool(match.group(1))
            body = body[match.end() :]
        opcode = _OPCODE.match(body)
        if opcode is None:
            raise ParseError(f"PTX line {self.line}: cannot read {text[:80]!r}")
        name = opcode.group(1)
        instr = Instr(name, tuple(name.split(".")), [], guard, negated, self.line, len(self.entry.instrs), text)
        if instr.base != "call":
            for position, operand in enumerate(split_operands(opcode.group(2))):
                instr.operands.append(self._operand(operand, instr, position))
        self.entry.instrs.append(instr)

    def _operand(self, text: str, instr: Instr, position: int) -> Any:
        if instr.base in ("bra", "brx"):
            self.fixups.append((instr, position, text, self.scope))
            return Label(text)
        if text.startswith("["):
            return self._memory(text[1:-1], instr)
        if text.startswith("{"):
            return Vec(tuple(self._operand(part, instr, -1) for part in split_operands(text[1:-1])))
        if "|" in text:
            first, second = text.split("|")
            return Pair(self._operand(first.strip(), instr, -1), self._operand(second.strip(), instr, -1))
        if text.startswith("!"):
            return Not(self._register(text[1:].strip()))
        return self._atom(text)

    def _memory(self, text: str, instr: Instr) -> Mem:
        parts = split_operands(text)
        match = _SUM.match(parts[0])
        if match is None:
            raise ParseError(f"PTX line {self.line}: cannot read address [{text}]")
        offset = _integer(match.group(2) or match.group(3) or "0")
        base = self._atom(match.group(1))
        if isinstance(base, Sym):
            base = replace(base, offset=base.offset + offset)
            offset = 0
        coords = tuple(self._operand(part, instr, -1) for part in parts[1:])
        return Mem(base, offset, coords)

    def _atom(self, text: str) -> Any:
        if text == "_":
            return Void()
        if _INT.match(text):
            return Imm(_integer(text))
        if match := _FLOAT_BITS.match(text):
            wide = match.group(2) in "dD"
            return Imm(int(match.group(3), 16), 64 if wide else 32)
        if text == "WARP_SZ":
            return Imm(32)
        register = self._lookup(text)
        if register is not None:
            return register
        if _SPECIAL.match(text):
            return Special(text[1:])
        return self._symbol(text)

    def _symbol(self, text: str) -> Any:
        match = _SUM.match(text)
        if match is None or match.group(1).startswith("%"):
            try:
                return Imm(int(_double_bits(float(text))), 64)
            except ValueError:
                raise ParseError(
                    f"PTX line {self.line}: {text!r} is neither a register, a symbol nor a literal"
                ) from None
        if re.match(r"[-+]?\d*\.\d", text):
            return Imm(_double_bits(float(text)), 64)
        return Sym(match.group(1), _integer(match.group(2) or match.group(3) or "0"))

    def _register(self, name: str) -> Reg:
        found = self._lookup(name)
        if found is None:
            raise ParseError(f"PTX line {self.line}: register {name!r} is not declared in this scope")
        return found

    def _lookup(self, name: str) -> Reg | None:
        scope: Scope | None = self.scope
        numbered = _NUMBERED.match(name)
        while scope is not None:
            if name in scope.registers:
                return scope.registers[name]
            if numbered and numbered.group(1) in scope.ranges:
                kind, count = scope.ranges[numbered.group(1)]
                if int(numbered.group(2)) < count:
                    scope.registers[name] = self._new_register(kind, name)
                    return scope.registers[name]
            scope = scope.parent
        return None

    def _find_label(self, name: str, scope: Scope | None, instr: Instr) -> Label:
        assert self.entry is not None
        while scope is not None:
            if name in scope.labels:
                self.entry.targets.add(scope.labels[name])
                return Label(name, scope.labels[name])
            scope = scope.parent
        raise ParseError(f"PTX line {instr.line}: label {name!r} is not defined")


def _double_bits(value: float) -> int:
    import struct

    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


def _kind(ptx_type: str) -> str:
    bits = TYPES[ptx_type][0]
    return {1: "p", 8: "16", 16: "16", 32: "32", 64: "64", 128: "128"}[bits]


def _initialiser(text: str, size: int) -> bytes:
    text = text.strip()
    items = split_operands(text[1:-1]) if text.startswith("{") else [text]
    out = b""
    for item in items:
        match = _FLOAT_BITS.match(item)
        value = int(match.group(3), 16) if match else (_integer(item) if _INT.match(item) else 0)
        out += (value % (1 << 8 * size)).to_bytes(size, "little")
    return out
