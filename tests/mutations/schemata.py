"""Puts many mutations into one build: a function that a mutation changes has the changed body beside its own, and a variable of the environment says which runs.

This is what the literature calls mutant schemata (Untch, Offutt and Harrold 1993): one build instead of one for each mutation. What it cannot hold, a change outside of a function's body
or in one whose two bodies would have different types, is built by itself.
"""

import re

# Which mutation runs: its number, from 1. Programs that a test starts inherit it.
VARIABLE = "AQUEDUCT_MUTATION"

TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*)
    |(?P<comment>/\*)
    |(?P<string>(?:b|c)?"(?:\\.|[^"\\])*")
    |(?P<raw>(?:b|c)?r(?P<marks>\#*)"(?s:.*?)"(?P=marks))
    |(?P<char>b?'(?:\\(?:u\{[^}]*\}|x..|.)|[^'\\])')
    |(?P<word>'?[A-Za-z_][A-Za-z0-9_]*)
    |(?P<mark>->|.)""",
    re.VERBOSE | re.DOTALL,
)
# What ends the text before a body at the same level.
ENDS = {";", "{", "}"}


def tokens(text):
    """(word or mark, where it begins) of Rust source, without blanks, comments and literals."""
    at = 0
    while at < len(text):
        found = TOKEN.match(text, at)
        if found.lastgroup == "comment":
            depth, at = 1, at + 2
            while depth and at < len(text):
                step = {"/*": 1, "*/": -1}.get(text[at : at + 2], 0)
                depth += step
                at += 2 if step else 1
            continue
        if found.lastgroup in ("word", "mark"):
            yield found.group(), at
        at = found.end()


class Function:
    """A function of a source: where its body lies, the braces left out, and what stands before it."""

    def __init__(self, head, start):
        self.head, self.start, self.end = head, start, None

    def can_choose(self):
        """Whether a `match` may stand in its body whose arms have the type of the body. Two arms of `impl Trait` are two types; constants read no environment."""
        returned = self.head[self.head.index("->") :] if "->" in self.head else []
        return "const" not in self.head[: self.head.index("fn")] and "impl" not in returned


def functions(text):
    """All functions with a body, in the order of their ends."""
    head, open_braces, brackets = [], [], 0
    for token, at in tokens(text):
        if token in "([":
            brackets += 1
        elif token in ")]":
            brackets -= 1
        if token == "{":
            named = [i for i, word in enumerate(head[:-1]) if word == "fn" and re.match(r"[A-Za-z_]", head[i + 1])]
            open_braces.append((Function(list(head), at + 1) if named and brackets == 0 else None, brackets, head))
            head, brackets = [], 0
        elif token == "}" and open_braces:
            function, brackets, _ = open_braces.pop()
            head = []
            if function:
                function.end = at
                yield function
        elif token in ENDS and brackets == 0:
            head = []
        else:
            head.append(token)


def enclosing(text, start, end):
    """The innermost function whose body holds a range of bytes, or None."""
    holders = [function for function in functions(text) if function.start <= start and end <= function.end]
    return min(holders, key=lambda function: function.end - function.start, default=None)


def place(text, change):
    """Where a change lies, and the function that holds it; None if it can only be built by itself."""
    start = text.index(change["find"])
    function = enclosing(text, start, start + len(change["find"]))
    return (start, function) if function and function.can_choose() else None


def choosing(body, changed):
    """A body that runs one of `changed` (number: body), and else itself."""
    chosen = (
        "{ static AT: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| "
        f'std::env::var("{VARIABLE}").ok().and_then(|at| at.parse().ok()).unwrap_or(0)); *AT }}'
    )
    arms = "".join(f"{number} => {{{other}}}\n" for number, other in changed.items())
    return f"match {chosen} {{\n{arms}_ => {{{body}}}\n}}"


def together(text, changes):
    """The source with all `changes` [(number, change)] that it can hold, and the numbers of the others."""
    bodies, left = {}, set()
    for number, change in changes:
        placed = place(text, change)
        if placed is None:
            left.add(number)
            continue
        start, function = placed
        span = (function.start, function.end)
        changed = bodies.setdefault(span, {})
        # Two changes of one mutation in one body: the second goes into what the first made.
        body = changed.get(number, text[slice(*span)])
        changed[number] = body.replace(change["find"], change["replace"])
    for outer in list(bodies):
        if any(outer != inner and outer[0] <= inner[0] and inner[1] <= outer[1] for inner in bodies):
            left.update(bodies.pop(outer))
    for (start, end), changed in sorted(bodies.items(), reverse=True):
        changed = {number: body for number, body in changed.items() if number not in left}
        if changed:
            text = text[:start] + choosing(text[start:end], changed) + text[end:]
    return text, left


def of_lines(text, lines):
    """The numbers of the mutations whose bodies hold these lines of a source that `together` made."""
    arm, found = None, set()
    wanted = set(lines)
    for line, content in enumerate(text.split("\n"), 1):
        begun = re.match(r"(\d+) => \{|(_) => \{", content)
        if begun:
            arm = int(begun.group(1)) if begun.group(1) else None
        if line in wanted and arm:
            found.add(arm)
    return found
