"""Grammars on a real vocabulary: right answers, compiling, masks and sizes, against two published engines.

Claims checked here (Tekken, 131,072 tokens; grammars and texts in and outside their languages are in `grammars/`):

- every text is accepted or refused as it should be;
- from a grammar to its first mask takes at most 3 times llguidance's time in the median;
- one mask and one advance on the host take at most 5 microseconds in the median and 20 at the 99th percentile on the
  tables of grammars that are regular or whose nesting is delimited, at the first use of a state and at the second;
- and where a grammar is read as it is, at most 8 in the median at the second use.

    python -m benchmarks.suites.grammar                        everything, some minutes
    python -m benchmarks.suites.grammar --quick                few rounds, to see that it runs
    python -m benchmarks.suites.grammar --only json sql --engines maskwright llguidance

NAME.lark is a grammar in Lark's notation, NAME.json the texts: `inside`, `outside`, and `beyond`, which the language
has and the grammar leaves out. NAME.llguidance.lark is what llguidance needs spelled otherwise, as it has a lexer: no
lookahead, `~` for keywords, spaces between words only ignored. xgrammar gets EBNF made from NAME.lark by `to_ebnf`,
which is exact. All engines run in this process, each grammar in turn. An engine accepts a text if each mask allows the
next token, it takes it, and its last mask allows EOS. Compiling is measured in processor time, which leaves out what
other processes take; steps are too short for that.
"""
