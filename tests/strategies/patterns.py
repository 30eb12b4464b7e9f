"""Hypothesis strategies for patterns of regular expressions, as `re` reads them too."""

from __future__ import annotations

from hypothesis import strategies as st

one_char = st.sampled_from([*"abAk1_- s", "K", r"\n", "é", ".", r"\d", r"\w", r"\s", r"\W", r"\S", r"\.", "\\u212a"])
members = st.lists(
    st.sampled_from(["a", "b", "K", "1", "_", " ", r"\n", "é", "a-c", "A-Z", "0-9", r"\d", r"\w", r"\s", r"\W", r"\-"]),
    min_size=1,
    max_size=3,
).map("".join)
sets = st.tuples(st.sampled_from(["[", "[^"]), members).map(lambda parts: f"{parts[0]}{parts[1]}]")
anchors = st.sampled_from(["^", "$", r"\A", r"\Z", r"\b", r"\B", "(?m:^)", "(?m:$)", r"(?a:\b)"])
# `re` wants lookbehind of fixed width
fixed = st.tuples(
    st.sampled_from(["", "", "^", r"\b", "(?=a)", "(?<!b)", "(?m:^)"]),
    st.lists(one_char | sets, max_size=2).map("".join),
    st.sampled_from(["", "", "$", r"\B", "(?!b)", "(?<=a)"]),
).map("".join)
quantifiers = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{,2}", "{2,}", "*?", "+?", "??", "{0,2}?"])
groups = st.sampled_from(["(", "(?:", "(?i:", "(?s:", "(?m:", "(?a:", "(?-i:", "(?im:", "(?s-i:"])


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.tuples(groups, st.lists(inner, min_size=1, max_size=3)).map(lambda p: f"{p[0]}{'|'.join(p[1])})"),
        st.tuples(st.sampled_from(["(?=", "(?!"]), inner).map(lambda p: f"{p[0]}{p[1]})"),
        st.tuples(st.sampled_from(["(?<=", "(?<!"]), fixed).map(lambda p: f"{p[0]}{p[1]})"),
        st.tuples(inner, quantifiers).map(lambda p: f"(?:{p[0]}){p[1]}"),
    )


patterns = st.tuples(
    st.sampled_from(["", "", "", "(?i)", "(?m)", "(?s)", "(?a)", "(?ai)"]),
    st.recursive(one_char | sets | anchors, larger, max_leaves=8),
).map("".join)
