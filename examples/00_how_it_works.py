"""The whole idea in one file: from a pattern to a table of numbers, and from the table to masks over a model's logits.

Nothing here uses maskwright until the last lines, which compare the masks with maskwright's own. The steps:

    pattern -> NFA -> DFA over bytes -> rows of tokens (a walk of the token trie) -> flat arrays -> mask, logits, token
"""

import re
from collections import Counter, deque

import numpy as np

# ------------------------------------------------------------------------------------------------------- the vocabulary
# a token is a number that spells some bytes; token 0 ends the text. A real tokenizer has 100,000 of them
LETTERS = [bytes([b]) for b in range(256)]
MERGED = [b"th", b"the ", b"he", b"in", b"ing", b'"a', b'", ', b'"]', b'["', b"10", b"20", b"],", b"1]", b" and"]
TOKENS = [b"", *LETTERS, *MERGED]
EOS, V = 0, len(TOKENS)

PATTERN = r'\["[a-z ]+"(, ("[a-z ]+"|[0-9]{1,3}))*\]'  # a list that begins with a string: ["the end", 10]


# ------------------------------------------------------------------------------------- 1. a pattern to a tree to an NFA
def parse(pattern):
    """Read literals, [a-z], ( ), |, *, +, ?, {m,n} and backslashes; return a tree of set, then, or, times."""
    text = deque(pattern.encode())

    def union():
        parts = [sequence()]
        while text and text[0] == ord("|"):
            text.popleft()
            parts.append(sequence())
        return "or", parts

    def sequence():
        parts = []
        while text and text[0] not in b"|)":
            part = atom()
            sign = chr(text[0]) if text else ""
            if sign in ("*", "+", "?"):
                text.popleft()
                part = "times", part, *{"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
            elif sign == "{":
                inside = "".join(iter(lambda: chr(text.popleft()), "}"))
                part = "times", part, *map(int, inside[1:].split(","))
            parts.append(part)
        return "then", parts

    def atom():
        byte = text.popleft()
        if byte == ord("("):
            inside = union()
            text.popleft()
            return inside
        if byte == ord("["):
            allowed = set()
            while (low := text.popleft()) != ord("]"):
                high = low
                if text[0] == ord("-"):
                    text.popleft()
                    high = text.popleft()
                allowed |= set(range(low, high + 1))
            return "set", allowed
        return "set", {text.popleft() if byte == ord("\\") else byte}

    return union()


class Nfa:
    """A graph of nodes with edges by sets of bytes, and edges that read nothing."""

    def __init__(self):
        self.edges, self.free = [], []  # of each node: [(bytes, node)], [node]

    def node(self):
        self.edges.append([])
        self.free.append([])
        return len(self.edges) - 1

    def add(self, tree):
        """Add what a tree matches, between two nodes, and return these."""
        first, last = self.node(), self.node()
        kind, what, *limits = tree
        if kind == "set":
            self.edges[first].append((what, last))
        elif kind == "or":
            for low, high in map(self.add, what):
                self.free[first].append(low)
                self.free[high].append(last)
        else:  # one behind the other; x{1,3} is x, then x or nothing, then x or nothing
            least, most = limits if kind == "times" else (None, None)
            at = first
            for copy, part in enumerate(what if kind == "then" else [what] * (most or max(least, 1))):
                low, high = self.add(part)
                self.free[at].append(low)
                if kind == "times" and copy >= least:
                    self.free[low].append(high)
                if kind == "times" and most is None:
                    self.free[high].append(low)
                at = high
            self.free[at].append(last)
        return first, last


# ----------------------------------------------------------------------------------------- 2. the NFA to a DFA of bytes
def determinize(nfa, start, end):
    """Return a DFA: for each state its edges {byte: state}, and whether a text may end there."""

    def closed(nodes):
        found, todo = set(nodes), list(nodes)
        while todo:
            for node in nfa.free[todo.pop()]:
                if node not in found:
                    found.add(node)
                    todo.append(node)
        return frozenset(found)

    states = {closed([start]): 0}  # a state is the set of nodes that the NFA may be at
    edges, accepting, todo = [], [], list(states)
    for nodes in todo:  # which grows while it is read
        following = {}
        for node in nodes:
            for allowed, target in nfa.edges[node]:
                for byte in allowed:
                    following.setdefault(byte, set()).add(target)
        edges.append({})
        accepting.append(end in nodes)
        for byte, targets in following.items():
            key = closed(targets)
            if key not in states:
                states[key] = len(states)
                todo.append(key)
            edges[-1][byte] = states[key]
    return edges, accepting


# ---------------------------------------------------------------------------------- 3. bytes to tokens: walk their trie
def token_trie():
    """Return the trie of all tokens: a node is [the token that ends here or None, {byte: node}]."""
    root = [None, {}]
    for token, spelling in enumerate(TOKENS):
        node = root
        for byte in spelling:
            node = node[1].setdefault(byte, [None, {}])
        if spelling:
            node[0] = token
    return root


def tokens_of(state, edges, trie):
    """Return the tokens that a state allows and where each leads. Beginnings that tokens share are read once."""
    found, todo = {}, [(trie, state)]
    while todo:
        (_, children), at = todo.pop()
        for byte, child in children.items():
            target = edges[at].get(byte)
            if target is not None:  # otherwise no token below this node is allowed
                if child[0] is not None:
                    found[child[0]] = target
                todo.append((child, target))
    return found


def bind(edges, accepting):
    """Return the rows of states that tokens reach, without those from which no text can be ended."""
    trie, rows, todo = token_trie(), {}, [0]
    while todo:
        state = todo.pop()
        if state not in rows:
            rows[state] = tokens_of(state, edges, trie)
            todo += rows[state].values()
    ends = {state for state in rows if accepting[state]}
    while True:  # whatever leads to a state from which an end can be reached is one itself
        more = {state for state, row in rows.items() if ends & set(row.values())} - ends
        if not more:
            break
        ends |= more
    number = {state: i for i, state in enumerate(sorted(ends, key=lambda state: (state != 0, state)))}
    bound = [{token: number[to] for token, to in rows[state].items() if to in number} for state in number]
    return bound, [accepting[state] for state in number]


# ----------------------------------------------------------------------------------------------- 4. rows to flat arrays
def lay_out(rows, accepting):
    """Return the table: the bases, which are sets of tokens that rows share, and the edges that a row has besides.

    A base is what most tokens of a row do: all of them lead to one state. Rows with equal bases share one mask, which
    is where the memory goes: V bits. All other edges lie in one array, those of row s from start[s] to start[s + 1].
    """
    bases, base_of, target_of, start, token, target = {}, [], [], [0], [], []
    for row in rows:
        usual, _ = Counter(row.values()).most_common(1)[0] if row else (0, 0)
        shared = frozenset(each for each, to in row.items() if to == usual)
        base_of.append(bases.setdefault(shared, len(bases)))
        target_of.append(usual)
        own = sorted((each, to) for each, to in row.items() if to != usual)
        token += [each for each, _ in own]
        target += [to for _, to in own]
        start.append(len(token))
    masks = np.zeros((len(bases), V), bool)
    for shared, base in bases.items():
        masks[base, list(shared)] = True
    return {
        "masks": np.packbits(masks, axis=1, bitorder="little"), "base": np.array(base_of), "leads": np.array(target_of),
        "start": np.array(start), "token": np.array(token, int), "target": np.array(target, int),
        "accepting": np.array(accepting),
    }  # fmt: skip


# ------------------------------------------------------------------------------------------- 5. masks, logits, decoding
def mask_of(table, states):
    """Return which tokens the states of a batch allow: bool (B, V)."""
    allowed = np.unpackbits(table["masks"][table["base"][states]], axis=1, count=V, bitorder="little").astype(bool)
    for row, state in enumerate(states):
        allowed[row, table["token"][table["start"][state] : table["start"][state + 1]]] = True
    allowed[:, EOS] = table["accepting"][states]
    return allowed


def advance(table, state, token):
    """Return the state after an allowed token: by an edge of the row's own, else where its base leads."""
    low, high = table["start"][state], table["start"][state + 1]
    at = low + np.searchsorted(table["token"][low:high], token)
    return table["target"][at] if at < high and table["token"][at] == token else table["leads"][state]


nfa = Nfa()
edges, accepting = determinize(nfa, *nfa.add(parse(PATTERN)))
rows, ends = bind(edges, accepting)
table = lay_out(rows, ends)
print(f"{len(edges)} states of the DFA, {len(rows)} rows, {len(table['masks'])} masks, {len(table['token'])} own edges")

rng, batch = np.random.default_rng(4), 4
states, written, done = np.zeros(batch, int), [[] for _ in range(batch)], np.zeros(batch, bool)
likes = rng.normal(size=V) + 2 * (np.arange(V) > 256)  # a model's taste, which is for longer tokens
while not done.all():
    logits = likes + rng.gumbel(size=(batch, V))
    masked = np.where(mask_of(table, states), logits, -np.inf)
    for row, token in enumerate(masked.argmax(axis=1)):
        if token == EOS:
            done[row] = True
        elif not done[row]:
            written[row].append(int(token))
            states[row] = advance(table, states[row], token)
for tokens in written:
    text = b"".join(TOKENS[token] for token in tokens).decode()
    print(f"{text!r:60} {[TOKENS[token].decode() for token in tokens][:6]} ..")
    assert re.fullmatch(PATTERN, text)

# ----------------------------------------------------------------------------------------- the same masks by maskwright
import maskwright as mw  # noqa: E402  # only now, so that it is plain that nothing above uses it

vocabulary = mw.Vocabulary.from_bytes(TOKENS, eos=EOS)
compiled = mw.compile_regex(PATTERN, vocabulary)
compared = 0
for tokens in written:
    matcher, state = mw.Matcher(compiled, vocabulary), 0
    for token in [*tokens, EOS]:
        theirs = np.unpackbits(matcher.mask().view(np.uint8), count=V, bitorder="little").astype(bool)
        assert (theirs == mask_of(table, [state])[0]).all(), "the masks differ"
        compared += 1
        assert matcher.advance(token)
        state = advance(table, state, token) if token != EOS else state
print(f"{compared} masks are equal to maskwright's")
