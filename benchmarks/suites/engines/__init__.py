"""maskwright inside serving engines, in the engines' own classes and processes, with their other backends beside it.

Claims checked here:

- in vLLM's classes a mask row takes 40 us in the mean and 250 us in the 99th of a hundred, and a token 15 us;
- 256 rows on two threads take a fourth of xgrammar's batch fill;
- 64 schemas, twice each, through vLLM and SGLang: every answer ends and is valid;
- 70 beams over a million semantic IDs through SGLang all exist, and are those of our own search within 1e-5;
- an engine starts at most 3 s later than without the plugin.

    python -m benchmarks.suites.engines --python .venv-engines/bin/python [--data FILE] [--parts rows vllm sglang beams]

`--python` is that of the environment with the engines, which `make test-engines` makes; the programs of this folder run
there. Rows are measured over Tekken, 131,072 tokens, with 64 schemas of `--data` or made-up ones; answers and beams
with a tiny Llama of random weights. Processor time: the machine may be shared.
"""
