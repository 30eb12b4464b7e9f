"""JSON Schemas on a real vocabulary: what is enforced, compiling, masks and sizes, against two published engines.

Claims checked here (Tekken, 131,072 tokens; schemas with instances that are known to be valid or not):

- at least 96 % of the schemas pass: every valid instance is accepted, every invalid one refused;
- no invalid instance is accepted, and of at most 0.3 % of the schemas a valid one is refused;
- from a schema to its first mask takes at most 3 times llguidance's time in the median, twice at the 99th percentile,
  and never 5 s;
- one mask and one advance take at most 5 microseconds in the median, 20 at the 99th percentile, and never 1 ms;
- a table takes at most 256 KB in the median, the part that all tables share aside.

    python -m benchmarks.suites.json_schema --data FILE        all engines, in turn, some schemas each
    python -m benchmarks.suites.json_schema                    the few schemas of `cases.py`, to see that it runs
    python -m benchmarks.suites.json_schema --data FILE --limit 5 --engines maskwright llguidance

FILE has one JSON object a line, perhaps compressed (.xz, .gz): `id`, `group`, `schema` and `tests`, a list of
{"valid": bool, "data": value}. With it, `results/json_schema.json` is written, and table and plot are made from that;
without, or with --limit or --quick, they go to a folder of their own. Measured are schemas of MaskBench
(guidance-ai/jsonschemabench), brought into this form.

maskwright and llguidance run in this process. xgrammar runs in one of its own, which waits while the others work: its
native code cannot be interrupted, and with some schemas it does not come back. maskwright with members in any order has
one too, as what it finds would be known to the other. Whole tables are worked out last; garbage is collected between
schemas, outside of what is timed. What an engine remembers of the schemas before stays with it. An
instance is written as `json.dumps` does, without escaping what is not ASCII, and its members come as they do in FILE.
The engines ask for them in the schema's order: where ours refuses a valid instance, it is asked about that order last.
"""
