"""A server under attack: whether it lives, and what others notice of it.

Claims checked here, of a `maskwright serve` process with its small model, two seconds for a constraint,
and all other limits as they are by default:

- while 10,000 hostile requests come in, 200 clients send nothing, or the head or the body of a request byte by byte,
  and 32 compile bombs are open at a time, the server answers all of its well-behaved clients, and their 99th
  percentile is at most twice that without the attack, for constraints that are in the cache and for new ones;
- 20,000 distinct schemas through a bounded cache, 100,000 requests: memory stays flat within 5 %.

    python -m benchmarks.suites.attack [--only latency memory] [--scale 0.05]

writes `results/attack-latency.json` and `results/attack-memory.json`, and a table. Well-behaved clients come from one
address, each kind of attackers from another. All attackers are one process, of lower priority, as they would have a
machine of their own. Hostile requests are those of `tests/fuzz`, bombs are patterns, schemas and grammars of it that
take all there is. The attack and the time without it alternate, as other work on the machine would otherwise count for
one of them.
"""
