"""Run SGLang's beam search while another process changes its catalogue: model, folder and answers are files."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import sglang
from living import asked

SECONDS, AT_ONCE, WIDTH = 20, 4, 20

if __name__ == "__main__":
    path, folder, out = sys.argv[1:]
    engine = sglang.Engine(
        model_path=path, device="cpu", attention_backend="torch_native", sampling_backend="pytorch",
        grammar_backend="maskwright", mem_fraction_static=0.4, max_total_tokens=65536, max_running_requests=256,
        page_size=1, dtype="float32", skip_server_warmup=True, log_level="warning",
    )  # fmt: skip
    here = Path(__file__).with_name("living.py")
    writer = subprocess.Popen([sys.executable, str(here), folder, str(SECONDS)])
    told = []

    async def client(number):
        rng = np.random.default_rng(number)
        while writer.poll() is None:
            fields, filtered, deny = asked(rng)
            prompt = rng.integers(2, 1000, int(rng.integers(3, 40))).tolist()
            params = {"max_new_tokens": 16, "beam_width": WIDTH, "n": WIDTH, "custom_params": fields}
            sent = time.monotonic()
            found = await engine.async_generate(input_ids=prompt, sampling_params=params)
            beams = (found[0] if isinstance(found, list) else found)["meta_info"]["beam_results"]
            told.append(([beam["output_ids"] for beam in beams], sent, time.monotonic(), filtered, deny))

    async def clients():
        await asyncio.gather(*map(client, range(AT_ONCE)))

    engine.loop.run_until_complete(clients())
    engine.shutdown()
    Path(out).write_text(json.dumps({"answers": told, "width": WIDTH, "writer": writer.returncode}))
