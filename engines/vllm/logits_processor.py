"""Items of a catalogue in vLLM: `--logits-processors maskwright.engines.vllm.logits_processor:CatalogueProcessor`.

vLLM has two model runners, each with an interface of its own for such classes. This one class has both: the constructor
tells them apart by its second argument, and hands everything else on to `HostRows` or `DeviceRows`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import vllm
from torch import Tensor
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import LogitsProcessor

from ...errors import ConstraintError
from ..catalogues import catalogues_here
from ..options import VARIABLE
from ..releases import check
from .device_rows import DeviceRows
from .host_rows import HostRows
from .requests import check_items

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig
    from vllm.v1.sample.logits_processor import BatchUpdate
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcContext, LogitsProcRequestState

try:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as LogitsProcessorV2
except ImportError:  # vLLM 0.28 to 0.30 run requests under the first runner where such a class is named
    LogitsProcessorV2 = type("LogitsProcessorV2", (), {})


class CatalogueProcessor(LogitsProcessor, LogitsProcessorV2):  # type: ignore[misc]  # vLLM is no dependency of the checks
    """Keeps the answers of requests that name a catalogue to its items; other requests are left alone.

    A request names what it wants in `extra_args`, over HTTP in `vllm_xargs`: see `catalogues.request_of`. An answer is
    the tokens of one item, complete within `max_tokens`, and then the tokenizer's end token.
    """

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        """Raise VLLMValidationError, which is a 400 over HTTP, for a request that cannot be kept to its items."""
        check_items(params, catalogues_here())

    def __init__(
        self, vllm_config: VllmConfig, where: torch.device | LogitsProcRequestState, is_pin_memory: bool | None = None
    ) -> None:
        """Read the catalogues.

        where: the device, from the first runner; the state of all requests, from the second. Raises
        MissingDependencyError for a release of vLLM that is not known, ConstraintError for catalogues that this model
        cannot write and settings under which their answers could not be kept.
        """
        first = isinstance(where, torch.device)
        part = "catalogues" if first else "catalogues under the second model runner"
        check("vLLM", vllm.__version__, part, "leave it out of --logits-processors")
        catalogues = catalogues_here()
        if not len(catalogues):
            raise ConstraintError(
                'names no catalogues, and the logits processor has nothing else to keep to: add "catalogues"',
                argument=VARIABLE,
            )
        if vllm_config.parallel_config.world_size > 1:
            catalogues.keep_still("the processes of this engine would read it at different times")
        ends = _ends_of(vllm_config.model_config)
        catalogues.check(vllm_config.model_config.get_vocab_size(), ends)
        self.rows: HostRows | DeviceRows = (
            HostRows(catalogues, vllm_config.model_config.max_model_len)
            if first
            else DeviceRows(catalogues, vllm_config, where, next(iter(ends)))
        )

    def is_argmax_invariant(self) -> bool:
        """Return False: what is likeliest may not be allowed."""
        return False

    # ------------------------------------------------------------------------------------------ the first runner

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Take in which requests have come, gone and moved."""
        assert isinstance(self.rows, HostRows)
        self.rows.update(batch_update)

    # ----------------------------------------------------------------------------------------- the second runner

    def add_request(self, req_idx: int, params: SamplingParams) -> bool:
        """Take in a request, in a slot that another may have had; return whether it names a catalogue."""
        assert isinstance(self.rows, DeviceRows)
        return self.rows.add(req_idx, params)

    def apply_staged_writes(self) -> None:
        """Write to the device what `add_request` took in."""
        assert isinstance(self.rows, DeviceRows)
        self.rows.write()

    # ---------------------------------------------------------------------------------------------------- of both

    def apply(self, logits: Tensor, context: LogitsProcContext | None = None) -> Tensor:
        """Return logits (n, V) with -inf at each token that is not allowed, in rows of requests with a catalogue.

        context: which rows are whose, from the second runner.
        """
        if isinstance(self.rows, HostRows):
            return self.rows.apply(logits)
        return self.rows.apply(logits, context)


def _ends_of(model_config: ModelConfig) -> dict[int, str]:
    """Return the tokens that end an answer by what they are, the tokenizer's own first. Raises ConstraintError."""
    from vllm.tokenizers import cached_tokenizer_from_config

    end = None
    if not model_config.skip_tokenizer_init:
        end = cached_tokenizer_from_config(model_config=model_config).eos_token_id
    if end is None:
        raise ConstraintError("a catalogue's answer ends with the tokenizer's eos_token, and this model has none")
    others = model_config.try_get_generation_config().get("eos_token_id") or []
    ends = {end: "the tokenizer's eos_token"}
    for token in [others] if isinstance(others, int) else others:
        ends.setdefault(token, "an eos_token_id of the generation config")
    return ends
