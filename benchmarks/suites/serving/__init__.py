"""Serving many schemas at once: a cache of tables, an arena of them, and a batch in which every row has its own.

Claims checked here (Tekken, 131,072 tokens; the schemas of `benchmarks.suites.json_schema --data`):

- a schema that is in the cache, among 1,000, is found in under 20 microseconds;
- 64 threads that ask for 10 new schemas cause 10 compilations;
- in one step for 64 rows with 64 different schemas masks and advance cost at most a fifth of what llguidance's parallel
  batch fill, application and commits cost, and of xgrammar's, in one process, where tokens are drawn from masks: by
  what that takes beyond drawing without any constraint; measured too is masking the logits in place;
- an arena with 1,000 of the schemas takes less than 512 MB;
- 100 schemas, 100 requests each, from 32 clients of `maskwright serve`: every answer is complete and valid.

    python -m benchmarks.suites.serving --data FILE [--parts cache step arena server] [--quick]

writes `results/serving.json`, and a table beside it. Each step is taken by all engines in turn, at the same place of
the same texts; what is compared is the median of ratios, and of differences the ratio of medians. Compared too is what
each engine takes for masks alone. All engines mask in place the same buffer of logits, written anew before each of
them, outside of what is timed. Where tokens are drawn, peers have theirs drawn from what they masked by the kernel
which draws ours from masks: their users would draw by operations of torch, which take longer.

The server has its default model, which is tiny, so a step of it is mostly what a server does beside its model. The
same server then writes as many tokens without any constraint.
"""
